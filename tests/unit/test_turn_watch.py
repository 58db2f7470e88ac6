"""Turns of the hub: the watch over them, the time of a peer, a process that stood still."""

from collections.abc import Callable, Iterator
from time import thread_time

import gevent
import pytest
from gevent import get_hub
from gevent import socket as sockets
from gevent.event import Event

from sluicemq_broker.runtime import Counters, Pulse, Timing, Turns
from sluicemq_broker.runtime.turns import LOOK, SLOW
from sluicemq_devices.hub import HEAVY, TimeUsed
from support.virtual_time import VirtualTime

LONG = 0.02


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def watched_turns(counters: Counters) -> Iterator[Turns]:
    watch = Turns(counters)
    watch.start()
    gevent.sleep(0.001)
    watch.take()
    yield watch
    watch.stop()


def compute(seconds: float) -> None:
    """Have this thread compute for so long, whatever else the machine does."""
    until = thread_time() + seconds
    while thread_time() < until:
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
def test_a_turn_is_as_long_as_what_is_done_in_it(watched_turns: Turns, done: Callable[..., None]) -> None:
    done(lambda: compute(LONG))
    gevent.sleep(0.001)
    longest, computed = watched_turns.take()
    assert computed >= LONG
    assert longest >= LONG


def test_greenlets_that_follow_each_other_at_once_make_one_turn(watched_turns: Turns) -> None:
    gevent.joinall([gevent.spawn(compute, LONG) for _ in range(3)])
    gevent.sleep(0.001)
    assert watched_turns.take()[1] >= 3 * LONG


def test_waiting_is_no_turn(watched_turns: Turns) -> None:
    gevent.sleep(5 * LONG)
    assert watched_turns.take()[1] < LONG


def test_what_was_taken_is_not_told_again(watched_turns: Turns) -> None:
    by_a_greenlet(lambda: compute(LONG))
    gevent.sleep(0.001)
    watched_turns.take()
    gevent.sleep(0.001)
    assert watched_turns.take()[1] < LONG


def test_a_slow_turn_is_counted_and_told(
    watched_turns: Turns, counters: Counters, caplog: pytest.LogCaptureFixture
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


def test_by_how_much_a_timer_comes_late_is_measured(counters: Counters, watched_turns: Turns) -> None:
    # Given: a hub that can do nothing else until after the timer is due
    compute(LOOK + LONG)
    gevent.sleep(0.001)
    assert LONG / 2 <= counters.timings[Timing.HUB_DELAY].sum < 60
    assert sum(counters.timings[Timing.HUB_DELAY].counts) == 1


#: Turns of a peer, each with its seconds and whether it had sent more, where a light one takes one second.
UsedTurns = list[tuple[float, bool]]


@pytest.mark.parametrize(
    ("turns", "level"),
    [
        ([], 2),
        ([(1.9, False)], 1),  # the average of what it used before, two seconds, and of this
        ([(0.0, False)], 1),
        ([(0.0, False)] * 2, 0),
        ([(5.9, False)], 2),
        ([(6.0, False)], HEAVY),
        ([(14.0, False), (0.0, False)], HEAVY),
        ([(14.0, False)] + [(0.0, False)] * 2, 2),
        ([(1e6, False)], HEAVY),
        # Turns until all was read count as one
        ([(3.9, True)], 2),
        ([(4.0, True)], HEAVY),
        ([(2.0, True), (2.0, True)], HEAVY),
        ([(0.0, True)] * 100, 2),
        ([(3.0, True), (2.9, False)], 2),
        ([(3.0, True), (3.0, False)], HEAVY),
        ([(3.0, True), (2.9, False), (0.0, False)], 1),
    ],
)
def test_a_peers_level_follows_the_time_in_which_it_was_read(turns: UsedTurns, level: int) -> None:
    peer = TimeUsed(1.0)
    for seconds, more in turns:
        peer.used(seconds, more=more)
    assert peer.level == level
    assert peer.is_light == (level < 2)
    assert peer.latest == (turns[-1][0] if turns else 0.0)


def test_a_peer_that_is_never_read_to_the_end_gets_heavy_and_light_again_once_it_is() -> None:
    peer = TimeUsed()
    assert 0 < peer.level < HEAVY
    peer.used(0.002, more=True)
    assert peer.level == HEAVY
    peer.used(0.0, more=False)
    assert peer.level == HEAVY
    for _ in range(10):
        peer.used(0.00001, more=False)
    assert peer.level == 0
    assert peer.is_light


def test_a_process_that_runs_did_not_stand_still() -> None:
    time = VirtualTime()
    pulse = Pulse(6.0, time.now)
    for _ in range(10):
        time.value += 1.0
        assert not pulse.was_frozen
        pulse.beat()
        assert not pulse.was_frozen


def test_a_pause_is_seen_before_and_after_the_first_beat_and_excused_for_as_long_as_a_silence() -> None:
    time = VirtualTime()
    pulse = Pulse(6.0, time.now)
    time.value += 6.1
    before = pulse.was_frozen
    pulse.beat()
    time.value += 5.9
    after = pulse.was_frozen
    pulse.beat()
    time.value += 0.2
    assert (before, after, pulse.was_frozen) == (True, True, False)
