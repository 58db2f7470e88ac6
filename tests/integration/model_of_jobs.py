"""The model's knowledge of each job at two brokers, and what must hold of it at every moment."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hypothesis.stateful import invariant

from integration.model_of_two_brokers import VISIBILITY, Fate, Hand, ModelWorker
from sluicemq.protocol import wire
from sluicemq.protocol.errors import DuplicateError, SluiceError
from sluicemq.protocol.options import OPTIONS
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import ERRORS_KEPT, Job
from sluicemq_broker.queue import Delivery, Push, Settlement, Verdict
from sluicemq_broker.store import seconds as seconds_of
from support.small_broker import MAX_LOSSES, SmallBroker
from support.virtual_time import come_to_rest

_MAX_UNANSWERED: Final = QueueSettings().max_unanswered
_UNFINISHED: Final = {"state": {"$in": ["ready", "waiting", "reserved"]}}


@dataclass(eq=False)
class Life:
    """The model's knowledge of one job, from the insert that bore it to its end.

    ``certain`` failed deliveries are counted, and up to ``possible``: a verdict is on its way.
    ``ending``: a commit is under way, or was, that may be applied; ``rejected``: the same of a reject.
    ``to_redrive``: that was ordered; ``redriven``: when it was done last, as its history tells.
    """

    job_id: str
    remember: bool
    max_attempts: int
    expires_at: float | None
    dedupe_id: str
    dedupe_until: float
    group: str | None
    seq: int
    certain: int = 0
    possible: int = 0
    accepted: int = 0
    ending: bool = False
    rejected: bool = False
    cancelled: bool = False
    to_redrive: bool = False
    redriven: datetime | None = None


@dataclass(eq=False, kw_only=True)
class LifeHand(Hand):
    """One delivery in this life; ``held``: when the verdict was given, the job was its own."""

    life: Life
    attempt: int
    held: bool = False
    failing: bool = False


class Lives(Fate):
    """No job is lost, none is done twice, and nobody works on a job that another one holds."""

    def begin(self) -> None:
        self.jobs = self.documents["queue.mail"]
        self.lives: dict[str, Life] = {}
        self.births: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.moments = itertools.count()
        self.began: list[tuple[Job, int]] = []  # pushes of jobs with a group, and when
        self.confirmed: dict[tuple[str, int], int] = {}  # id and number, and when
        self.pending: Counter[str] = Counter()
        self.void: set[tuple[str, int]] = set()  # pushes that were told that the id is there

    @invariant()
    def holds(self) -> None:
        """All is as the model says."""
        come_to_rest()
        self._bury_the_dead()
        self.stopping()
        stored = {job["_id"]: job for job in self.jobs.find({}, {"payload": 0})}
        for life in self.lives.values():
            self._begin_anew(life, stored.get(life.job_id))
            self._check(life, stored.get(life.job_id))
        assert stored.keys() <= self.lives.keys()
        assert self.complaints == []
        self.sound = True

    def push_all(self, broker: SmallBroker, jobs: list[Job]) -> None:
        before, then, others = Counter(self.births), self.clock.now(), set(+self.pending)
        self.sent.update(job.id for job in jobs)
        self.pending.update(job.id for job in jobs)
        moment = next(self.moments)
        self.began += [(job, moment) for job in jobs if job.group]
        sent = Counter(self.sent)

        def told(refused: dict[int, SluiceError], existing: Any) -> None:
            if broker.line.dead:
                return
            self.pending.subtract(job.id for job in jobs)
            for at, job in enumerate(jobs):
                if isinstance(refused.get(at), DuplicateError):
                    first = job.dedupe and self._namesakes(job.id, job.dedupe.id, then)
                    self._expect(first, f"{job.id} was refused as a duplicate of nothing: {refused[at]}")
                    stored = self.births[job.id] - before[job.id]
                    twice = sum(other.id == job.id for other in jobs) > 1
                    alone = not (twice or job.id in others) and sent[job.id] == self.sent[job.id]
                    self._expect(not (alone and stored), f"{job.id} was refused, and stored")
                elif at in refused:
                    self._expect(broker.retry.over, f"{job.id} was refused: {refused[at]}")
                elif at in existing:
                    self._expect(self.births[job.id] > 0, f"{job.id} was never stored, but is said to exist")
                    self.void.add((job.id, job.seq))
                else:
                    self._expect(self.births[job.id] > before[job.id], f"{job.id} was not stored")
                    self.confirmed[job.id, job.seq] = next(self.moments)

        broker.queue.intake.push(Push(jobs, told))

    def born(self, collection: str, documents: list[dict[str, Any]], stored: set[int]) -> None:
        """An insert was applied, known to its broker or not; ``stored``: numbers of what it stored before."""
        for document in documents:
            self._expect(document["seq"] not in stored, f"{document['_id']} is stored twice by one push")
            stored.add(document["seq"])
            void = (document["_id"], document["seq"]) in self.void
            self._expect(not void, f"{document['_id']} is stored, though it was told that it exists")
            former = self.lives.get(document["_id"])
            self._expect(former is None or self._may_be_gone(former), f"{document['_id']} was lost")
            self.births[document["_id"]] += 1
            dedupe_id = document.get("dedupe_id", "")
            rivals = dedupe_id and self._namesakes(document["_id"], dedupe_id, self.clock.now())
            self._expect(
                not rivals or all(map(self._may_be_gone, rivals)),
                f"{document['_id']} was stored, and is a duplicate of {rivals}",
            )
            self.lives[document["_id"]] = Life(
                document["_id"],
                "remember" in document,
                document.get("max_attempts", OPTIONS["max_attempts"].default),
                time_of(document, "expires_at"),
                dedupe_id,
                time_of(document, "dedupe_until") or 0.0,
                document.get("group"),
                document["seq"],
            )

    def _namesakes(self, job_id: str, dedupe_id: str, at: float) -> list[Life]:
        """The other jobs of this dedupe id whose window is open then; those that expired may be gone."""
        return [
            life
            for life in self.lives.values()
            if life.dedupe_id == dedupe_id and life.job_id != job_id and life.dedupe_until > at
        ]

    def delivered(self, worker: ModelWorker, delivery: Delivery) -> LifeHand:
        """A worker gets a job: nobody else may have it, and its attempt is that of the model."""
        job, life = delivery.job, self.lives[delivery.job.id]
        live = self._live_owners()
        rivals = [hand for hand in self.open if hand.open and hand.life is life and hand.owner in live]
        self._expect(not rivals, f"{job.id} is delivered twice at the same time")
        self._expect(not life.accepted, f"{job.id} is delivered after its commit was accepted")
        if life.to_redrive:
            self._begin_anew(life, self.jobs.find_one({"_id": job.id}))
        seen, least, most = job.attempts, life.certain + 1, life.possible + 1
        self._expect(least <= seen <= most, f"{job.id}: attempt {seen}, not {least} to {most}")
        if life.group is not None:
            self._in_turn(life, live)
        life.certain = life.possible = seen - 1
        hand = LifeHand(
            life=life,
            broker=worker.broker,
            queue=worker.queue,
            receipt=delivery.receipt,
            owner=job.owner,
            attempt=seen,
            until=self.time.value + VISIBILITY,
        )
        self.open.append(hand)
        return hand

    def _in_turn(self, life: Life, live: set[str]) -> None:
        """Nobody works on another job of its group, and none waits that was there before it was pushed."""
        others = [job for job in self.lives.values() if job.group == life.group and job is not life]
        at_work = [
            hand.life for hand in self.open if hand.open and hand.life in others and hand.owner in live
        ]
        self._expect(not at_work, f"{life} is at work beside {at_work}")
        began = [moment for job, moment in self.began if (job.id, job.seq) == (life.job_id, life.seq)]
        before = [
            other.job_id
            for other in others
            if self.confirmed.get((other.job_id, other.seq), math.inf) < max(began, default=0)
            and not (other.redriven or life.redriven)
        ]
        waiting = {"_id": {"$in": before}, "state": "waiting", "wait.group": life.group}
        passed = [job["_id"] for job in self.jobs.find(waiting, {"_id": 1})]
        self._expect(not passed, f"{life} has overtaken {passed}")

    def settle_all(self, broker: SmallBroker, hands: list[LifeHand], kind: str, delay: float | None) -> None:
        valid = {hand for hand in hands if hand.open and hand.owner in broker.owners.own_ids()}
        for hand in hands:
            hand.held = hand in valid and self._holds(hand)
            hand.fired = broker.line.fired
            hand.open = False
            if hand.held and kind == wire.COMMIT:
                hand.life.ending = True
            elif hand.held and kind != wire.RELEASE:
                self._fails(hand)
                hand.life.rejected |= kind == wire.REJECT

        def told(problems: dict[int, SluiceError]) -> None:
            for at, hand in enumerate(hands):
                self._hear(hand, hand in valid, kind, problems.get(at))

        detail = b"result" if kind == wire.COMMIT else "why"
        verdicts = [Verdict(hand.receipt, kind, detail, delay) for hand in hands]
        broker.queue.settling.settle(verdicts, Settlement(told))

    def _hear(self, hand: LifeHand, valid: bool, kind: str, problem: SluiceError | None) -> None:  # noqa: FBT001
        broker, life = hand.broker, hand.life
        if broker.line.dead:
            return
        what = f"{kind} of {life.job_id}, attempt {hand.attempt}"
        if problem is None:
            self._expect(valid, f"{what}: accepted, but the receipt was void")
        else:
            well = hand.owner in self._live_owners() and broker.line.fired == hand.fired
            self._expect(not (valid and well), f"{what}: refused, but all was well: {problem!r}")
        if kind == wire.COMMIT and problem is None:
            self._expect(hand.held, f"{what}: accepted, but another one held it")
            life.accepted += 1
            self._expect(life.accepted == 1, f"{what}: accepted twice")

    def runs_out(self, hand: LifeHand) -> None:
        if self._holds(hand) and hand.owner in hand.broker.owners.own_ids():
            self._fails(hand)

    def _fails(self, hand: LifeHand) -> None:
        hand.held = hand.failing = True
        hand.life.possible = max(hand.life.possible, hand.attempt)

    def _holds(self, hand: LifeHand) -> bool:
        """Return whether this delivery is the one that counts, as MongoDB knows it."""
        held = {"state": "reserved", "owner": hand.owner, "attempts": hand.attempt}
        return self.jobs.find_one({"_id": hand.life.job_id, **held}) is not None

    def stopping(self) -> None:
        """A failed delivery is counted once its broker has nothing more to write, if it lives."""
        live = self._live_owners()
        for hand in self.open:
            if hand.failing and not hand.broker.busy:
                hand.failing = False
                if hand.owner in live and not hand.broker.line.dead:
                    hand.life.certain = max(hand.life.certain, hand.attempt)
        self.open = [hand for hand in self.open if hand.open or hand.failing]

    def _begin_anew(self, life: Life, stored: dict[str, Any] | None) -> None:
        """If it was a dead letter, and the order to redrive it has been carried out since the last look."""
        errors = stored.get("errors", ()) if stored and life.to_redrive else ()
        at = max((error["at"] for error in errors if error["reason"] == "redriven"), default=None)
        if stored is None or at is None or (life.redriven and at <= life.redriven):
            return
        life.certain = life.possible = 0
        life.rejected, life.redriven = False, at
        life.expires_at = time_of(stored, "expires_at")
        for hand in self.open:
            hand.failing &= hand.life is not life

    def _may_be_gone(self, life: Life) -> bool:
        now = self.clock.now()
        expired = life.expires_at is not None and life.expires_at <= now
        kept = life.remember or life.dedupe_until > now
        return expired or life.cancelled or (not kept and bool(life.accepted or life.ending))

    def _check(self, life: Life, stored: dict[str, Any] | None) -> None:
        if stored is None:
            assert self._may_be_gone(life), f"{life} was lost"
            return
        state = stored["state"]
        failures = stored["attempts"] - (state == "reserved")
        assert not life.accepted or state == "done", f"{life} was committed, and is {stored}"
        in_turn = life.group if state in ("ready", "reserved") else None
        assert stored.get("head") == in_turn, stored
        if state in ("ready", "waiting", "reserved"):
            assert life.redriven or min(failures, ERRORS_KEPT) == len(stored.get("errors", ())), stored
            assert life.certain <= failures <= life.possible, (life, stored)
        elif state == "done":
            assert life.remember or life.dedupe_id
            assert life.accepted or life.ending, stored
            assert stored["result"] == b"result"
        else:
            assert self._may_be_dead(life, stored), (life, stored)

    def _may_be_dead(self, life: Life, stored: dict[str, Any]) -> bool:
        used_up = 0 < life.max_attempts <= life.possible
        lost = stored.get("losses", 0) >= MAX_LOSSES or stored.get("unanswered", 0) >= _MAX_UNANSWERED
        return life.rejected or used_up or lost

    def commit(self, hands: list[LifeHand]) -> None:
        for broker in self.brokers:
            if mine := [hand for hand in hands if hand.broker is broker]:
                self.settle_all(broker, mine, wire.COMMIT, 0.0)

    def died_with(self, hand: LifeHand) -> None:
        if self._holds(hand):
            self._fails(hand)

    def unfinished(self) -> list[dict[str, Any]]:
        return list(self.jobs.find(_UNFINISHED, {"payload": 0}))

    def _work_until_all_is_done(self) -> None:
        super()._work_until_all_is_done()
        for broker in self.brokers:
            assert not broker.busy
            assert not broker.queue.held
        assert not self.births - self.sent  # an insert that is repeated, or lands late, stores a job once


def time_of(stored: dict[str, Any], field: str) -> float | None:
    return seconds_of(stored[field]) if field in stored else None
