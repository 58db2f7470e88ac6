"""The model's knowledge of each job in pipelines at two brokers, and what must hold at every moment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from hypothesis.stateful import invariant

from integration.model_of_two_brokers import VISIBILITY, Fate, Hand, ModelWorker
from sluicemq.protocol import wire
from sluicemq.protocol.errors import DuplicateError, SluiceError
from sluicemq_broker.queue import Delivery
from sluicemq_broker.store import seconds
from support.small_broker import SmallBroker
from support.virtual_time import come_to_rest

QUEUES: Final = ("mail", "next", "letters")
#: Seconds between two runs of the schedule.
EVERY: Final = 7.0
_UNFINISHED: Final = ("ready", "waiting", "reserved")

Stored = dict[str, Any]


@dataclass(eq=False, kw_only=True)
class JobHand(Hand):
    """One delivery of this job."""

    job_id: str
    ours: bool = False
    """Return whether its broker held it under an owner of its own when its worker settled it."""


class Stories(Fate):
    """Every job is pushed once, under an id of its own, and lies in one queue, with all of its history."""

    limits: Mapping[str, Any] = MappingProxyType({"on_dead": "letters"})
    queues = QUEUES
    before_work = ("round", "tick")
    emptied: ClassVar[tuple[str, ...]] = (
        *(f"queue.{name}" for name in QUEUES),
        *("owners", "limits", "schedules"),
    )

    def _new_broker(self, slot: int) -> SmallBroker:
        broker = super()._new_broker(slot)
        for name in QUEUES:
            broker.queues.open(name)
        return broker

    def begin(self) -> None:
        self.numbers = itertools.count(1)
        self.moments = itertools.count()
        self.kept: set[str] = set()
        self.began: dict[str, int] = {}
        self.confirmed: dict[str, int] = {}
        self.births: Counter[str] = Counter()
        self.committed: set[str] = set()  # a worker has said so; whether it is, only MongoDB knows
        self.accepted: Counter[str] = Counter()
        self.parents: set[str] = set()
        self.cancelled: set[str] = set()
        self.may_have_gone: Counter[str] = Counter()  # on to another queue, so often
        self.have_gone: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.ended_at: dict[str, Any] = {}

    def born(self, collection: str, documents: list[Stored], stored: set[int]) -> None:
        """A job that has come from another queue has been born there."""
        self.births.update(
            document["_id"]
            for document in documents
            if collection.startswith("queue.") and "passed" not in document
        )

    @invariant()
    def holds(self) -> None:
        """All is where it belongs."""
        come_to_rest()
        self._bury_the_dead()
        there = self._there()
        copies = Counter(document["_id"] for _, document in there)
        assert not [copy for copy, count in copies.items() if count > 1], there
        stored = {document["_id"]: document for _, document in there}
        for job_id in self.confirmed.keys() - stored.keys():
            assert self._may_be_gone(job_id), f"{job_id} is nowhere"
        for story in stored.values():
            self._check_story(story)
            self._check_end(story)
        for story in stored.values():
            self._check_family(story, stored)
        self._check_runs(stored)
        assert self.complaints == []
        self.sound = True

    def _there(self) -> list[tuple[str, Stored]]:
        """Every job, with its queue; not what those that have gone on leave behind."""
        return [
            (name, document)
            for name in QUEUES
            for document in self.documents[f"queue.{name}"].find({"forwarded_to": {"$exists": False}})
        ]

    def _may_be_gone(self, job_id: str) -> bool:
        done = job_id in self.committed or job_id in self.parents
        return job_id in self.cancelled or (done and job_id not in self.kept)

    def _check_story(self, stored: Stored) -> None:
        """What it is and where it has been; a job of a schedule, and its children, are no others."""
        job_id, passed, errors = stored["_id"], stored.get("passed", []), stored.get("errors", [])
        root = job_id.partition(".")[0] if "@" not in job_id else "beat"
        assert stored["payload"] == root.encode(), stored
        gone_on = sum("hold" in passing for passing in passed)
        assert self.have_gone[job_id] <= gone_on <= self.may_have_gone[job_id], stored
        if len(errors) < 10:
            assert sum(error["reason"] == "why" for error in errors) >= self.failed[job_id], stored

    def _check_end(self, stored: Stored) -> None:
        job_id, state = stored["_id"], stored["state"]
        assert state == "done" or not self.accepted[job_id], f"committed, and is {stored}"
        if state == "done":
            assert job_id in self.committed or job_id in self.parents, stored
            assert self.ended_at.setdefault(job_id, stored["ended_at"]) == stored["ended_at"], stored

    def _check_family(self, stored: Stored, all_stored: Mapping[str, Stored]) -> None:
        """As many are left as it waits for; none is left of one that is done, unless a worker has said so."""
        awaited = [
            document["_id"]
            for document in all_stored.values()
            if document["state"] != "done" and _waits(stored, document.get("parent", {}))
        ]
        if stored["state"] == "waiting" and "children" in stored:
            assert len(awaited) == stored["children"]["left"] > 0, (stored, awaited)
        elif stored["state"] == "done":
            assert not awaited or stored["_id"] in self.committed, (stored, awaited)
        above = stored.get("parent", {}).get("id", "")
        if above and stored["state"] != "done" and "told" not in stored["parent"]:
            known = above in all_stored or above in self.cancelled or above in self.committed
            assert known, f"{stored} is there, and its parent has ended"

    def _check_runs(self, stored: Mapping[str, Stored]) -> None:
        runs = [birth for birth in self.births if birth.startswith("beat@") and birth.endswith("Z")]
        twice = [birth for birth, count in self.births.items() if count > 1]
        assert not twice, f"{twice} are pushed twice"
        schedule = self.documents["schedules"].find_one()
        if schedule:
            due = (seconds(schedule["next_at"]) - seconds(schedule["begins_at"])) / EVERY - 1
            assert len(runs) == round(due), (runs, schedule)

    def unfinished(self) -> list[Stored]:
        return [
            row
            for name, row in self._there()
            if row["state"] in _UNFINISHED or (row["state"] == "dead" and name != "letters")
        ]

    def delivered(self, worker: ModelWorker, delivery: Delivery) -> JobHand:
        """A worker gets a job that nobody else has, that has not ended, and whose turn it is."""
        job_id, live = delivery.job.id, self._live_owners()
        rivals = [hand for hand in self.open if hand.open and hand.job_id == job_id and hand.owner in live]
        self._expect(not rivals, f"{job_id} is delivered twice at the same time")
        self._expect(not self.accepted[job_id], f"{job_id} is delivered after its commit was accepted")
        if worker.queue == "mail" and job_id in self.began and not self.may_have_gone[job_id]:
            self._in_turn(job_id)
        hand = JobHand(
            job_id=job_id,
            queue=worker.queue,
            broker=worker.broker,
            receipt=delivery.receipt,
            owner=delivery.job.owner,
            until=self.time.value + VISIBILITY,
        )
        self.open.append(hand)
        return hand

    def _in_turn(self, job_id: str) -> None:
        before = [
            other
            for other in self.began
            if self.confirmed.get(other, self.began[job_id]) < self.began[job_id]
        ]
        passed = [
            document["_id"]
            for document in self.documents["queue.mail"].find({"_id": {"$in": before}, "wait.group": "g"})
            if "passed" not in document
        ]
        self._expect(not passed, f"{job_id} has overtaken {passed}")

    def _says(self, job_id: str, kind: str) -> None:
        """What may be true of it from now on."""
        if kind == wire.COMMIT:
            self.committed.add(job_id)
        elif kind == wire.FAN_OUT:
            self.parents.add(job_id)
            self.kept |= {f"{job_id}.1", f"{job_id}.2"}
        elif kind == wire.FORWARD:
            self.may_have_gone[job_id] += 1

    def _hearing(self, hands: list[JobHand], kind: str) -> Any:
        def told(problems: dict[int, SluiceError]) -> None:
            for at, hand in enumerate(hands):
                if not hand.broker.line.dead:
                    self._hear(hand, kind, problems.get(at))

        return told

    def _hear(self, hand: JobHand, kind: str, problem: SluiceError | None) -> None:
        what = f"{kind} of {hand.job_id}"
        if problem is not None:
            well = hand.ours and hand.owner in self._live_owners() and hand.broker.line.fired == hand.fired
            first = isinstance(problem, DuplicateError) and kind == wire.FAN_OUT  # of a former life
            self._expect(not well or first, f"{what}: refused, but all was well: {problem!r}")
        elif kind == wire.COMMIT:
            self.accepted[hand.job_id] += 1
            self._expect(self.accepted[hand.job_id] == 1, f"{what}: accepted twice")
        elif kind == wire.FORWARD:
            self.have_gone[hand.job_id] += 1
        elif kind in (wire.ROLLBACK, wire.REJECT):
            self.failed[hand.job_id] += hand.owner in self._live_owners() and hand.broker.line.fired == 0


def _waits(parent: Stored, awaited: Mapping[str, Any]) -> bool:
    """Return whether a job names this parent, since that fan-out, which has not heard of its death."""
    by = parent.get("children", {}).get("by")
    return (awaited.get("id"), awaited.get("by")) == (parent["_id"], by) and "told" not in awaited
