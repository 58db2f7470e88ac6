"""Collecting items into batches: order, sizes, writes at once, and what happens to a batch that fails."""

import gc
import logging
import weakref

import gevent
import pytest
from gevent.event import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.runtime.batcher import _greenlets


class Writes:
    """A write that can be held up; it notes what it was given and how many were under way at once."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let_go = Event()
        self.let_go.set()
        self.now = self.most = 0

    def __call__(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self.now += 1
        self.most = max(self.most, self.now)
        self.let_go.wait(60.0)
        self.now -= 1


@pytest.fixture
def writes() -> Writes:
    return Writes()


def test_one_item_is_written_at_once(writes: Writes) -> None:
    batcher = Batcher(writes, size=10)
    batcher.add(1)
    assert batcher.drain(60.0)
    assert writes.batches == [[1]]


def test_a_greenlet_writes_for_one_batcher_after_the_other_and_keeps_none() -> None:
    # Given one that fails, too
    written: list[tuple[int, object]] = []

    def write(batch: list[int]) -> None:
        written.append((batch[0], gevent.getcurrent()))
        if batch[0] == 2:
            raise ValueError(batch)

    def fail(_waiting: int) -> None:
        raise ValueError("not gathered")

    batchers = [Batcher(write, size=10), Batcher(write, size=10), Batcher(write, size=10, gather=fail)]
    batchers.append(batchers[0])
    for number, batcher in enumerate(batchers, 1):
        batcher.add(number)
        assert batcher.busy
        assert batcher.drain(60.0)
    last = weakref.ref(batcher)
    batchers.clear()
    del batcher
    gc.collect()
    assert [number for number, _ in written] == [1, 2, 4]
    assert len({greenlet for _, greenlet in written}) == 1
    assert last() is None


def test_as_many_greenlets_as_writes_at_once_and_a_few_rest(writes: Writes) -> None:
    writes.let_go.clear()
    batchers = [Batcher(writes, size=1) for _ in range(100)]
    for batcher in batchers:
        batcher.add(1)
    gevent.idle()
    assert writes.now == len(batchers)
    writes.let_go.set()
    assert all(batcher.drain(60.0) for batcher in batchers)
    gevent.idle()
    assert len(_greenlets.resting) == 64


def test_what_comes_while_a_write_is_under_way_is_one_batch(writes: Writes) -> None:
    batcher = Batcher(writes, size=10)
    writes.let_go.clear()
    batcher.add(1)
    gevent.idle()
    batcher.add(2)
    batcher.extend([3, 4])
    gevent.idle()
    waiting = len(batcher)
    writes.let_go.set()
    assert batcher.drain(60.0)
    assert waiting == 3
    assert writes.batches == [[1], [2, 3, 4]]


def test_a_batch_is_no_larger_than_its_size(writes: Writes) -> None:
    batcher = Batcher(writes, size=3)
    batcher.extend(range(7))
    assert batcher.drain(60.0)
    assert writes.batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_the_weight_of_items_counts_and_one_that_is_too_heavy_goes_alone(writes: Writes) -> None:
    batcher = Batcher(writes, size=5, weigh=lambda item: item)
    batcher.extend([2, 2, 2, 99, 1, 4, 1])
    assert batcher.drain(60.0)
    assert writes.batches == [[2, 2, 2], [99], [1, 4], [1]]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_so_many_writes_are_under_way_at_once_and_no_more(writes: Writes, in_flight: int) -> None:
    batcher = Batcher(writes, size=1, in_flight=in_flight)
    writes.let_go.clear()
    for item in range(10):
        batcher.add(item)
        gevent.idle()
    writes.let_go.set()
    assert batcher.drain(60.0)
    assert writes.most == in_flight
    assert writes.batches == [[item] for item in range(10)]


def test_items_that_come_one_by_one_are_gathered_for_a_moment(writes: Writes) -> None:
    moment = Event()
    batcher = Batcher(writes, size=3, gather=lambda _waiting: moment.wait())
    for item in range(2):
        batcher.add(item)
        gevent.idle()
    moment.set()
    assert batcher.drain(60.0)
    assert writes.batches == [[0, 1]]


def test_whoever_gathers_hears_before_each_batch_how_many_items_wait(writes: Writes) -> None:
    waiting: list[int] = []
    batcher = Batcher(writes, size=3, gather=waiting.append)
    batcher.extend(range(5))
    assert batcher.drain(60.0)
    assert waiting == [5, 2]
    assert writes.batches == [[0, 1, 2], [3, 4]]


def test_a_failed_batch_is_logged_and_handed_back_and_the_next_goes(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[list[int]] = []
    written: list[int] = []

    def write(batch: list[int]) -> None:
        if 1 in batch:
            raise UnavailableError("patience is over")
        if 2 in batch:
            raise ValueError("a mistake of ours")
        written.extend(batch)

    batcher = Batcher(write, size=1, failed=failed.append)
    with caplog.at_level(logging.ERROR, "broker"):
        batcher.extend([1, 2, 3])
        assert batcher.drain(60.0)
    assert failed == [[1], [2]]
    assert written == [3]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]


def test_drain_says_whether_everything_was_written_in_time(writes: Writes) -> None:
    batcher = Batcher(writes, size=1)
    assert batcher.drain(0)
    writes.let_go.clear()
    batcher.extend([1, 2])
    in_time = batcher.drain(0.01)
    busy = batcher.busy
    writes.let_go.set()
    assert (in_time, busy) == (False, True)
    assert batcher.drain(60.0)
    assert not batcher.busy


def test_what_waits_can_be_taken_out_and_what_is_being_written_is_not_among_it(writes: Writes) -> None:
    batcher = Batcher(writes, size=1)
    writes.let_go.clear()
    batcher.extend([1, 2, 3])
    gevent.idle()
    left = batcher.clear()
    writes.let_go.set()
    assert batcher.drain(60.0)
    assert left == [2, 3]
    assert writes.batches == [[1]]


def test_nothing_to_add_starts_nothing(writes: Writes) -> None:
    batcher = Batcher(writes, size=1)
    batcher.extend([])
    assert not batcher.busy
    assert batcher.drain(0)


@settings(max_examples=50, deadline=None)
@given(pushes=st.lists(st.integers(0, 7), max_size=20), size=st.integers(1, 5), in_flight=st.integers(1, 3))
def test_every_item_is_written_once_and_in_order(pushes: list[int], size: int, in_flight: int) -> None:
    written: list[int] = []

    def write(batch: list[int]) -> None:
        assert 1 <= len(batch) <= size
        written.extend(batch)
        gevent.sleep(0)

    batcher = Batcher(write, size=size, in_flight=in_flight)
    start = 0
    for count in pushes:
        batcher.extend(range(start, start + count))
        start += count
        gevent.sleep(0)
    assert batcher.drain(60.0)
    assert written == list(range(start))
