"""The watch over the hub's turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import get_hub
from gevent import socket as sockets
from gevent.event import Event

from sluicemq_broker.runtime import Counters, Timing, Turns
from sluicemq_broker.runtime.turns import LOOK, SLOW

LONG = 0.02


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def turns(counters: Counters) -> Iterator[Turns]:
    watch = Turns(counters)
    watch.start()
    gevent.sleep(0.001)
    watch.take()
    yield watch
    watch.stop()


def compute(seconds: float) -> None:
    """Have this thread compute for so long, whatever else the machine does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def by_a_greenlet(work: Callable[[], None]) -> None:
    gevent.spawn(work).join()


def by_a_timer(work: Callable[[], None]) -> None:
    timer, done = get_hub().loop.timer(0.001), Event()
    timer.start(lambda: (work(), done.set()))
    done.wait()


def by_a_socket(work: Callable[[], None]) -> None:
    ours, theirs = sockets.socketpair()
    reader, done = get_hub().loop.io(ours.fileno(), 1), Event()
    reader.start(lambda: (reader.stop(), work(), done.set()))
    theirs.send(b"x")
    done.wait()
    reader.close()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("done", [by_a_greenlet, by_a_timer, by_a_socket])
def test_a_turn_is_as_long_as_what_is_done_in_it(turns: Turns, done: Callable[..., None]) -> None:
    done(lambda: compute(LONG))
    gevent.sleep(0.001)
    longest, computed = turns.take()
    assert computed >= LONG
    assert longest >= LONG


def test_greenlets_that_follow_each_other_at_once_make_one_turn(turns: Turns) -> None:
    gevent.joinall([gevent.spawn(compute, LONG) for _ in range(3)])
    gevent.sleep(0.001)
    assert turns.take()[1] >= 3 * LONG


def test_waiting_is_no_turn(turns: Turns) -> None:
    gevent.sleep(5 * LONG)
    assert turns.take()[1] < LONG


def test_what_was_taken_is_not_told_again(turns: Turns) -> None:
    by_a_greenlet(lambda: compute(LONG))
    gevent.sleep(0.001)
    turns.take()
    gevent.sleep(0.001)
    assert turns.take()[1] < LONG


def test_a_slow_turn_is_counted_and_told(
    turns: Turns, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    by_a_greenlet(lambda: compute(SLOW))
    gevent.sleep(0.001)
    assert counters.values["slow_turns"] >= 1
    assert "one turn of the hub took " in caplog.text


def test_starting_and_stopping_twice_is_harmless(counters: Counters) -> None:
    watch = Turns(counters)
    watch.stop()
    for _ in range(2):
        watch.start()
        watch.start()
        watch.stop()
        watch.stop()
    assert watch.take() == (0.0, 0.0)


def test_by_how_much_a_timer_comes_late_is_measured(counters: Counters, turns: Turns) -> None:
    # Given: a hub that can do nothing else until after the timer is due
    compute(LOOK + LONG)
    gevent.sleep(0.001)
    assert counters.timings[Timing.HUB_DELAY].sum >= LONG / 2
    assert sum(counters.timings[Timing.HUB_DELAY].counts) == 1
