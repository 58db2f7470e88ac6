"""A broker is killed between what ends the first job of a group, or brings it, and the next promotion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol import wire
from sluicemq_broker.queue import Push, Settlement, Verdict
from sluicemq_broker.queue.groups import HEADLESS_EVERY
from sluicemq_broker.store import QueueStore
from support.fakes import FakeWorker
from support.faulty_mongo import Fault, Kind, Line
from support.jobs import a_job, everything
from support.small_broker import BEAT, LEASE, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest


class SweptGroupsRig:
    """A broker that will be killed, and another one that has a worker."""

    def __init__(self, documents: Database[dict[str, Any]], store: QueueStore) -> None:
        self.store = store
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        self._names = (f"owner-{number}" for number in itertools.count())
        self.first, self.second = (self._broker(documents, name) for name in ("first", "second"))
        self.worker = FakeWorker(10)
        self.second.queue.attach(self.worker)

    def _broker(self, documents: Database[dict[str, Any]], name: str) -> SmallBroker:
        line = Line(lambda *_stored: None, self.time)
        return SmallBroker(name, documents, self.time, self.clock, line, lambda: next(self._names))

    def push(self, *names: str) -> None:
        jobs = [a_job(name, group="g", eligible_at=self.clock.now()) for name in names]
        self.first.queue.intake.push(Push(jobs, lambda _refused, _existing: None))
        come_to_rest()

    def heads(self) -> list[str]:
        return [name for name, job_id in everything(self.store).items() if "head" in job_id]

    def goes_by(self, seconds: float) -> None:
        """At the broker that lives."""
        for _ in range(int(seconds / BEAT) + 1):
            self.time.passes(BEAT)
            self.second.beat()
            self.second.tick()
        self.second.sweep()
        self.second.tick()


@pytest.fixture
def rig(documents: Database[dict[str, Any]], store: QueueStore) -> Iterator[SweptGroupsRig]:
    rig = SweptGroupsRig(documents, store)
    yield rig
    for broker in (rig.first, rig.second):
        broker.line.dead = True
    rig.time.passes(1000.0)


def test_a_new_group_goes_on_before_any_sweep(rig: SweptGroupsRig) -> None:
    rig.push("a", "b")
    assert rig.heads() == ["a"]


def test_a_group_of_a_broker_that_is_killed_behind_its_insert_goes_on_elsewhere(rig: SweptGroupsRig) -> None:
    rig.first.line.fault = Fault(Kind.KILLED_AFTER, "insert")
    rig.push("a", "b")
    assert (len(everything(rig.store)), rig.heads()) == (2, [])
    rig.goes_by(3 * LEASE)
    assert rig.worker.jobs == ["a"]


@pytest.mark.parametrize(
    ("verdict", "statement"), [(wire.COMMIT, "delete_many"), (wire.REJECT, "bulk_write")]
)
def test_a_group_of_a_broker_that_is_killed_behind_a_verdict_goes_on_elsewhere(
    rig: SweptGroupsRig, verdict: str, statement: str
) -> None:
    rig.second.queue.pause(frozenset({wire.DELIVERY}))
    worker = FakeWorker(10)
    rig.first.queue.attach(worker)
    rig.push("a", "b")
    assert worker.jobs == ["a"]
    rig.first.line.fault = Fault(Kind.KILLED_AFTER, statement)
    settlement = Settlement(lambda _problems: None)
    rig.first.queue.settling.settle([Verdict(worker.deliveries[0].receipt, verdict)], settlement)
    come_to_rest()
    rig.time.passes(0.01)
    assert (rig.first.line.dead, rig.heads()) == (True, [])
    rig.second.queue.pause(frozenset())
    rig.goes_by(3 * LEASE)
    assert rig.worker.jobs == ["b"]


def test_what_is_left_behind_without_a_death_is_found_in_a_minute(rig: SweptGroupsRig) -> None:
    """Somebody has removed the first job by hand."""
    rig.second.queue.pause(frozenset({wire.DELIVERY}))
    rig.push("a", "b")
    rig.store.jobs.delete_one({"_id": "a"})
    rig.second.sweep()
    assert rig.heads() == []
    rig.goes_by(HEADLESS_EVERY)
    assert rig.heads() == ["b"]
