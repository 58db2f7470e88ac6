"""When a queue is full, as counted and carried on; and who is held then, until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.queue import Counted
from sluicemq_broker.queue.capacity import Capacity, Flow


class CapacityRig:
    """A queue whose flow a test tells."""

    def __init__(self, **settings: Any) -> None:
        self.settings = QueueSettings(**settings)
        self.flow = Flow()
        self.capacity = Capacity("mail", self.settings, lambda: self.flow)

    def comes(self, count: int = 0, size: int = 0, ended: int = 0, held: int = 0) -> None:
        flow = self.flow
        self.flow = Flow(flow.came + count, flow.size + size, flow.ended + ended, flow.held + held)
        self.capacity.resume_if_room()

    def reconfigure(self, **settings: Any) -> None:
        self.capacity.reconfigure(replace(self.settings, **settings))


class Connection:
    """One that pushes."""

    def __init__(self) -> None:
        self.paused_by: set[object] = set()

    def pause(self, by: object) -> None:
        self.paused_by.add(by)

    def resume(self, by: object) -> None:
        self.paused_by.discard(by)


def held(rig: CapacityRig, *, answered: bool = False) -> Connection:
    connection = Connection()
    rig.capacity.pause_if_full(connection, answered=answered)
    return connection


def test_a_queue_without_bounds_is_never_full() -> None:
    rig = CapacityRig()
    rig.comes(10**9)
    assert not rig.capacity.bounded
    assert not rig.capacity.full
    assert rig.capacity.room > 10**9
    assert not held(rig).paused_by


def test_what_came_here_counts_from_when_it_came_and_what_is_reserved_or_ended_no_more() -> None:
    rig = CapacityRig(max_ready=10)
    rig.comes(10)
    assert (rig.capacity.full, rig.capacity.room) == (True, 0)
    rig.comes(held=2)
    assert (rig.capacity.full, rig.capacity.room) == (False, 2)
    rig.comes(held=-2, ended=2)
    assert (rig.capacity.waiting, rig.capacity.room) == (8, 2)


def test_what_others_did_is_known_when_it_is_counted() -> None:
    rig = CapacityRig(max_ready=10)
    rig.comes(3)
    then = rig.capacity.flow()
    rig.comes(1)  # while it is counted
    rig.capacity.counted(Counted(9, 20, 0), then)
    assert (rig.capacity.waiting, rig.capacity.full) == (10, True)
    rig.capacity.counted(Counted(2, 20, 0), rig.capacity.flow())
    assert rig.capacity.room == 8


def test_what_happens_while_it_is_counted_makes_a_queue_look_fuller_and_never_emptier() -> None:
    rig = CapacityRig(max_ready=10, max_bytes=100_000)
    rig.flow = Flow(came=5, size=5_000, storing=2, storing_size=2_000)
    begun = rig.capacity.flow()
    rig.comes(ended=1, held=1)
    rig.capacity.counted(Counted(3, 3, 3_600), begun)
    assert rig.capacity.waiting == 5  # those being stored, which it may have or not, are two
    assert rig.capacity.size == 3_600 + 2_000 + 2 * 200


def test_who_is_alone_keeps_to_what_it_knows_while_something_happens_for_a_while() -> None:
    rig = CapacityRig(max_ready=10)
    rig.capacity.counted(Counted(5, 5, 0), rig.capacity.flow(), 100.0, shared=False)

    def counted_in_a_hurry(at: float) -> int:
        begun = rig.capacity.flow()
        rig.comes(1)
        rig.capacity.counted(Counted(rig.capacity.waiting, 0, 0), begun, at, shared=False)
        return rig.capacity.waiting

    assert counted_in_a_hurry(101.0) == 6
    assert counted_in_a_hurry(129.0) == 7
    assert counted_in_a_hurry(130.0) == 9  # one counts twice
    rig.capacity.counted(Counted(8, 0, 0), rig.capacity.flow(), 131.0, shared=False)
    assert rig.capacity.waiting == 8
    rig.capacity.recount()
    assert counted_in_a_hurry(132.0) == 10


def test_bytes_are_those_counted_and_those_that_came_less_an_average_for_each_that_ended() -> None:
    rig = CapacityRig(max_bytes=100_000)
    rig.capacity.counted(Counted(10, 10, 50_000), rig.capacity.flow())
    rig.comes(10, 48_000)
    assert rig.capacity.full  # for each takes some 200 bytes besides
    rig.comes(ended=10)
    assert not rig.capacity.full
    assert rig.capacity.size == 50_000


def test_the_refusal_names_what_is_full() -> None:
    rig = CapacityRig(max_ready=1, max_bytes=1_000_000)
    rig.comes(2, 100)
    assert str(rig.capacity.refusal()) == (
        "queue 'mail' is full (2 jobs wait, max_ready = 1; its jobs have 500 bytes, max_bytes = 1000000): "
        "push again later"
    )


@pytest.mark.parametrize(
    ("overflow", "answered", "waits"),
    [("refuse", True, False), ("refuse", False, True), ("hold", True, True), ("hold", False, True)],
)
def test_askers_are_refused_or_wait_and_others_wait(overflow: str, *, answered: bool, waits: bool) -> None:
    rig = CapacityRig(max_ready=1, overflow=overflow)
    rig.comes(1)
    assert bool(held(rig, answered=answered).paused_by) == waits
    assert (rig.capacity.room > 0) == (overflow == "hold")


@pytest.mark.parametrize(("most", "leave"), [(1, 1), (7, 1), (8, 1), (16, 2), (800, 100)])
def test_who_waits_goes_on_when_an_eighth_is_free(most: int, leave: int) -> None:
    rig = CapacityRig(max_ready=most)
    rig.comes(most)
    waiting = held(rig)
    rig.comes(ended=leave - 1)
    assert waiting.paused_by
    rig.comes(ended=1)
    assert not waiting.paused_by


def test_who_waits_goes_on_when_the_bounds_are_raised_or_the_broker_stops() -> None:
    rig = CapacityRig(max_ready=1)
    rig.comes(2)
    waiting = held(rig)
    rig.reconfigure(max_ready=10)
    assert not waiting.paused_by
    rig.reconfigure(max_ready=1)
    waiting = held(rig)
    rig.capacity.open()
    assert not waiting.paused_by
    assert not rig.capacity.full
    assert not held(rig).paused_by


def test_a_connection_that_has_gone_is_not_kept() -> None:
    rig = CapacityRig(max_ready=1)
    rig.comes(1)
    held(rig)
    rig.comes(ended=1)
    assert not rig.capacity._held
