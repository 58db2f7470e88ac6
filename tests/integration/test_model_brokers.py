"""Two brokers and three workers against a short model, while MongoDB fails and brokers die.

Whatever happens: no job is lost, none is committed twice by accepted answers, nobody works on a job
that another one holds, attempts count exactly the deliveries that failed, and of duplicates one is stored.
Of a group one job at a time is at work, none before one that was confirmed before it was pushed, and no group
stands still for good.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from pymongo.database import Database

from fakes import FakeWorker
from faulty_mongo import Fault, Kind
from sluicemq import wire
from sluicemq.errors import Duplicate, SluiceError
from sluicemq_broker.job.job import ERRORS_KEPT, Dedupe, Job
from sluicemq_broker.queue.intake import Push
from sluicemq_broker.queue.verdict import Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.store.documents import seconds as seconds_of
from sluicemq_broker.store.queue_store import QueueStore
from small_broker import BEAT, MAX_LOSSES, SmallBroker
from two_brokers import VISIBILITY, WORK, Fate, check, run_alone, seats, slots, surrounded, unanswered
from virtual_time import come_to_rest

#: After so many heartbeats everything has come to its end, if all are well.
_LONG: Final = 200
_UNFINISHED: Final = {"state": {"$in": ["ready", "waiting", "reserved"]}}

job_ids = st.sampled_from("abcdef")
orders = st.fixed_dictionaries(
    {
        "id": job_ids,
        "priority": st.integers(0, 2),
        "delay": st.sampled_from([0, 0, 0, 2]),
        "ttl": st.sampled_from([None, None, None, 4]),
        "max_attempts": st.sampled_from([0, 1, 3, 3]),
        "remember": st.sampled_from([None, None, 10**6]),
        "dedupe": st.sampled_from([None, None, None, Dedupe("x", 5.0), Dedupe("x", 1000.0)]),
        "group": st.sampled_from([None, "g", "g", "h"]),
    }
)
_PLAIN: Final = {
    "priority": 0, "delay": 0, "ttl": None, "max_attempts": 3,
    "remember": None, "dedupe": None, "group": None,
}  # fmt: skip


@dataclass(eq=False)
class Life:
    """What the model knows of one job, from the insert that bore it to its end.

    ``certain`` failed deliveries are counted, and up to ``possible``: a verdict is on its way.
    ``ending``: a commit is under way, or was, that may be applied; ``rejected``: the same of a reject.
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
    redriven: bool = False


@dataclass(eq=False)
class Hand:
    """One delivery, as its worker sees it; ``held``: when the verdict was given, the job was its own."""

    life: Life
    broker: SmallBroker
    receipt: bytes
    owner: str
    attempt: int
    until: float
    open: bool = True
    held: bool = False
    failing: bool = False
    fired: int = 0


class ModelWorker(FakeWorker):
    """Tells the model of each job that it gets, at the moment when it gets it."""

    def __init__(self, model: TwoBrokers, broker: SmallBroker, prefetch: int) -> None:
        super().__init__(prefetch)
        self.model = model
        self.broker = broker
        self.hands: list[Hand] = []

    def deliver(self, deliveries: Any) -> None:
        self.hands += [self.model.delivered(self.broker, each) for each in deliveries]


class TwoBrokers(Fate):
    """Rules are what workers, producers, brokers and fate do; the model hears what comes of it."""

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

    @initialize()
    def everybody_is_at_work(self) -> None:
        for seat in range(len(self.workers)):
            self._come(seat, self.brokers[seat % 2], 2)
        for broker, names, group in zip(self.brokers, ("abc", "de"), (None, "g"), strict=True):
            self._push(broker, [self._job({**_PLAIN, "id": name, "group": group}) for name in names])

    # ----------------------------------------------------------- what people do

    @rule(slot=slots, jobs=st.lists(orders, min_size=1, max_size=3))
    def push(self, slot: int, jobs: list[dict[str, Any]]) -> None:
        self._begin()
        self._push(self.brokers[slot], [self._job(each) for each in jobs])

    @rule(seat=seats, slot=slots, prefetch=st.integers(1, 3))
    def come(self, seat: int, slot: int, prefetch: int) -> None:
        self._begin()
        self.leave_seat(seat, died=False)
        self._come(seat, self.brokers[slot], prefetch)

    @rule(seat=seats, died=st.booleans())
    def leave(self, seat: int, *, died: bool) -> None:
        self._begin()
        self.leave_seat(seat, died=died)

    @rule(
        seat=seats,
        kind=st.sampled_from([wire.COMMIT, wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.RELEASE]),
        delay=st.sampled_from([None, 0.0, 2.0]),
        which=st.sampled_from(["first", "all", "late"]),
    )
    def settle(self, seat: int, kind: str, delay: float | None, which: str) -> None:
        self._begin()
        worker = self.workers[seat]
        if worker is None:
            return
        mine = [hand for hand in worker.hands if hand.open]
        late = [hand for hand in worker.hands if not hand.open]
        chosen = {"first": mine[:1], "all": mine, "late": late[-2:]}[which]
        if chosen:
            self._settle(worker.broker, chosen, kind, delay)

    @rule(
        slot=slots, job_id=job_ids, order=st.sampled_from(["promote", "cancel", "change", "redrive", "pause"])
    )
    def order(self, slot: int, job_id: str, order: str) -> None:
        self._begin()
        if order == "pause":
            queue = self.brokers[slot].queue
            queue.pause(frozenset({wire.DELIVERY}) - queue.paused)
            return
        before = self._stored(job_id)
        more = {"change": [{"priority": 5, "delay": 1.0}]}.get(order, [])
        if order == "redrive":
            self._do(slot, lambda admin: admin.redrive("mail", {"ids": [job_id]}, None))
        else:
            self._do(slot, lambda admin: getattr(admin, order)("mail", job_id, *more))
        if before:
            self._ordered(order, before, self._stored(job_id))

    # ---------------------------------------------------------- what brokers do

    @rule(slot=slots, answer=st.sampled_from([None, wire.COMMIT, wire.COMMIT, wire.ROLLBACK, wire.RELEASE]))
    def a_broker_is_silent_until_it_is_declared_dead(self, slot: int, answer: str | None) -> None:
        """What its workers say then, it hears before it learns of that."""
        self._begin()
        self._pass(8 * BEAT, slot)
        self.brokers[1 - slot].sweep()
        silent = self.brokers[slot]
        hands = self._hands_of(silent)
        if answer and hands:
            self._settle(silent, hands, answer, 0.0)

    @rule(
        slot=slots,
        job_id=job_ids,
        kind=unanswered,
        audits=st.integers(0, 2),
        reserved=st.booleans(),
        delivered=st.booleans(),
    )
    def an_insert_has_no_answer_while_all_goes_on(
        self, slot: int, job_id: str, kind: Kind, audits: int, *, reserved: bool, delivered: bool
    ) -> None:
        """What it has stored, others may take, finish and forget; or it is ``reserved``, for its broker."""
        self._begin()
        broker = self.brokers[slot]
        for seat in range(len(self.workers)):
            self.leave_seat(seat, died=False)
        self._come(1 - slot, self.brokers[1 - slot], 10)
        if reserved:
            self._come(slot, broker, 10)
        self._pass(0.1)
        broker.line.fault = Fault(kind, "insert")
        self._push(broker, [self._job({**_PLAIN, "id": job_id})])
        self._pass(2 * BEAT)  # in which the other one looks
        for _ in range(audits):
            broker.audit()
        for each in self.brokers:
            if hands := self._hands_of(each):
                self._settle(each, hands, wire.COMMIT, 0.0)
        self._pass(0.1)
        self._let_all_go(broker, delivered=delivered)

    @rule(
        slot=slots,
        job_id=job_ids,
        kind=unanswered,
        verdict=st.sampled_from([wire.COMMIT, wire.COMMIT, wire.ROLLBACK, wire.RELEASE]),
        elsewhere=st.sampled_from([False, False, True]),
        seconds=st.sampled_from([1.0, 7.0]),  # a claim waits two for what goes back, and then goes past it
        delivered=st.sampled_from([False, False, True]),
    )
    def a_verdict_has_no_answer_while_its_job_goes_on(
        self,
        slot: int,
        job_id: str,
        kind: Kind,
        verdict: str,
        seconds: float,
        *,
        elsewhere: bool,
        delivered: bool,
    ) -> None:
        """The job, or another one of its id, is at a worker when the statement is repeated, or lands."""
        self._begin()
        broker = self._at_work(slot, job_id)
        hands = self._hands_of(broker)[:1]
        if not hands:
            return
        writes = {wire.COMMIT: "delete_many", wire.ROLLBACK: "bulk_write", wire.RELEASE: "update_many"}
        statement = writes[verdict]
        broker.line.fault = Fault(kind, statement)
        self._settle(broker, hands, verdict, 0.0)
        come_to_rest()
        self._pass(0.01)
        pushed_at = self.brokers[1 - slot if elsewhere else slot]
        self._push(pushed_at, [self._job({**_PLAIN, "id": hands[0].life.job_id})])
        self._pass(seconds)
        self._let_all_go(broker, delivered=delivered)
        self._pass(seconds)

    @rule(slot=slots, at_work=job_ids, later=job_ids, kind=unanswered)
    def a_claim_has_no_answer_beside_jobs_at_work(
        self, slot: int, at_work: str, later: str, kind: Kind
    ) -> None:
        self._begin()
        broker = self._at_work(slot, at_work)
        self._push(broker, [self._job({**_PLAIN, "id": later, "delay": 2})])
        self._pass(1.9)
        broker.line.fault = Fault(kind, "update_many")
        self._pass(1.0)
        self._let_all_go(broker, delivered=False)

    def _at_work(self, slot: int, job_id: str) -> SmallBroker:
        """A broker whose worker has something, if there is anything, and takes more."""
        broker = self.brokers[slot]
        for seat in range(len(self.workers)):
            self.leave_seat(seat, died=False)
        self._come(slot, broker, 10)
        self._pass(0.1)
        if not self._hands_of(broker):
            self._push(broker, [self._job({**_PLAIN, "id": job_id})])
            self._pass(0.1)
        return broker

    # ---------------------------------------------------------- what must hold

    @invariant()
    def holds(self) -> None:
        """All is as the model says."""
        come_to_rest()
        self._bury_the_dead()
        self.stopping()
        stored = {each["_id"]: each for each in self.jobs.find({}, {"payload": 0})}
        for life in self.lives.values():
            self._check(life, stored.get(life.job_id))
        assert stored.keys() <= self.lives.keys()
        assert self.complaints == []
        self.sound = True

    def teardown(self) -> None:
        try:
            if self.sound:
                self._heal()
                self._work_until_all_is_done()
        finally:
            self.end_all()

    def works(self, broker: SmallBroker) -> None:
        broker.interfere("tick")
        self.time.passes_inside(0.01)
        self._settle(broker, self._hands_of(broker), wire.COMMIT, 0.0)
        for _ in range(3):  # commits are gathered for a moment
            self.time.passes_inside(0.01)

    # ------------------------------------------------------------------- pushes

    def _job(self, order: dict[str, Any]) -> Job:
        now = self.clock.now()
        return Job(
            order["id"],
            b"payload",
            priority=order["priority"],
            eligible_at=now + order["delay"],
            expires_at=None if order["ttl"] is None else now + order["ttl"],
            max_attempts=order["max_attempts"],
            visibility_timeout=VISIBILITY,
            remember=order["remember"],
            dedupe=order["dedupe"],
            group=order["group"],
        )

    def _push(self, broker: SmallBroker, jobs: list[Job]) -> None:
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
                if isinstance(refused.get(at), Duplicate):
                    first = job.dedupe and self._namesakes(job.id, job.dedupe.id, then)
                    self._expect(first, f"{job.id} was refused as a duplicate of nothing: {refused[at]}")
                    stored = self.births[job.id] - before[job.id]
                    twice = sum(each.id == job.id for each in jobs) > 1
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

        broker.queue.push(Push(jobs, told))

    def born(self, collection: str, documents: list[dict[str, Any]], stored: set[int]) -> None:
        """An insert was applied, known to its broker or not; ``stored``: numbers of what it stored before."""
        for each in documents:
            self._expect(each["seq"] not in stored, f"{each['_id']} is stored twice by one push")
            stored.add(each["seq"])
            void = (each["_id"], each["seq"]) in self.void
            self._expect(not void, f"{each['_id']} is stored, though it was told that it exists")
            former = self.lives.get(each["_id"])
            self._expect(former is None or self._may_be_gone(former), f"{each['_id']} was lost")
            self.births[each["_id"]] += 1
            dedupe_id = each.get("dedupe_id", "")
            rivals = dedupe_id and self._namesakes(each["_id"], dedupe_id, self.clock.now())
            self._expect(
                not rivals or all(map(self._may_be_gone, rivals)),
                f"{each['_id']} was stored, and is a duplicate of {rivals}",
            )
            self.lives[each["_id"]] = Life(
                each["_id"],
                "remember" in each,
                each.get("max_attempts", 5),
                _time(each, "expires_at"),
                dedupe_id,
                _time(each, "dedupe_until") or 0.0,
                each.get("group"),
                each["seq"],
            )

    def _namesakes(self, job_id: str, dedupe_id: str, at: float) -> list[Life]:
        """The other jobs of this dedupe id whose window is open then; those that expired may be gone."""
        return [
            life
            for life in self.lives.values()
            if life.dedupe_id == dedupe_id and life.job_id != job_id and life.dedupe_until > at
        ]

    # ----------------------------------------------------------------- deliveries

    def delivered(self, broker: SmallBroker, delivery: Delivery) -> Hand:
        """A worker gets a job: nobody else may have it, and its attempt is that of the model."""
        job, life = delivery.job, self.lives[delivery.job.id]
        live = self._live_owners()
        rivals = [hand for hand in self.open if hand.open and hand.life is life and hand.owner in live]
        self._expect(not rivals, f"{job.id} is delivered twice at the same time")
        self._expect(not life.accepted, f"{job.id} is delivered after its commit was accepted")
        seen, least, most = job.attempts, life.certain + 1, life.possible + 1
        self._expect(least <= seen <= most, f"{job.id}: attempt {seen}, not {least} to {most}")
        if life.group is not None:
            self._in_turn(life, live)
        life.certain = life.possible = seen - 1
        until = self.time.value + VISIBILITY
        hand = Hand(life, broker, delivery.receipt, job.owner, seen, until)
        self.open.append(hand)
        return hand

    def _in_turn(self, life: Life, live: set[str]) -> None:
        """Nobody works on another job of its group, and none waits that was there before it was pushed."""
        others = [each for each in self.lives.values() if each.group == life.group and each is not life]
        at_work = [
            hand.life for hand in self.open if hand.open and hand.life in others and hand.owner in live
        ]
        self._expect(not at_work, f"{life} is at work beside {at_work}")
        began = [moment for job, moment in self.began if (job.id, job.seq) == (life.job_id, life.seq)]
        before = [
            each.job_id
            for each in others
            if self.confirmed.get((each.job_id, each.seq), math.inf) < max(began, default=0)
            and not (each.redriven or life.redriven)
        ]
        waiting = {"_id": {"$in": before}, "state": "waiting", "wait.group": life.group}
        passed = [each["_id"] for each in self.jobs.find(waiting, {"_id": 1})]
        self._expect(not passed, f"{life} has overtaken {passed}")

    def _settle(self, broker: SmallBroker, hands: list[Hand], kind: str, delay: float | None) -> None:
        valid = {hand for hand in hands if hand.open and hand.owner in broker.owners.mine()}
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
        broker.queue.settle(verdicts, Settlement(told))

    def _hear(self, hand: Hand, valid: bool, kind: str, problem: SluiceError | None) -> None:  # noqa: FBT001
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

    def _come(self, seat: int, broker: SmallBroker, prefetch: int) -> None:
        worker = self.workers[seat] = ModelWorker(self, broker, prefetch)
        broker.queue.attach(worker)

    def seat(self, seat: int, broker: SmallBroker, former: ModelWorker) -> None:
        self._come(seat, broker, former.prefetch)

    def leave_seat(self, seat: int, *, died: bool) -> None:
        worker, self.workers[seat] = self.workers[seat], None
        if worker is None:
            return
        for hand in [hand for hand in worker.hands if hand.open]:
            hand.open = False
            if died and self._holds(hand):
                self._fails(hand)
        worker.broker.queue.worker_gone(worker, died=died)

    def runs_out(self, hand: Hand) -> None:
        if self._holds(hand) and hand.owner in hand.broker.owners.mine():
            self._fails(hand)

    def _fails(self, hand: Hand) -> None:
        hand.held = hand.failing = True
        hand.life.possible = max(hand.life.possible, hand.attempt)

    def _holds(self, hand: Hand) -> bool:
        """Whether this delivery is the one that counts, as MongoDB knows it."""
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

    # ------------------------------------------------------------------- brokers

    def _ordered(self, order: str, before: dict[str, Any], after: dict[str, Any] | None) -> None:
        """What became of a job for which there was an order; nothing else runs meanwhile."""
        life = self.lives[before["_id"]]
        if order == "cancel" and after is None:
            waited = before["state"] in ("ready", "waiting")
            self._expect(waited, f"{life} was cancelled while it was {before['state']}")
            life.cancelled = True
        if order == "redrive" and after and before["state"] == "dead" != after["state"]:
            life.certain = life.possible = 0
            life.rejected, life.redriven = False, True
            life.expires_at = _time(after, "expires_at")

    def _stored(self, job_id: str) -> dict[str, Any] | None:
        return self.jobs.find_one({"_id": job_id})

    def _work_until_all_is_done(self) -> None:
        workers = [ModelWorker(self, broker, 100) for broker in self.brokers]
        for worker in workers:
            worker.broker.queue.attach(worker)
        for _ in range(_LONG):
            self._pass(BEAT)
            for worker in workers:
                mine = [hand for hand in worker.hands if hand.open]
                if mine:
                    self._settle(worker.broker, mine, wire.COMMIT, 0.0)
                worker.broker.sweep()
                worker.broker.audit()
            self.holds()
            if not self.jobs.count_documents(_UNFINISHED):
                break
        self._pass(BEAT)
        self.holds()
        left = list(self.jobs.find(_UNFINISHED, {"payload": 0}))
        assert left == []
        for broker in self.brokers:
            assert not broker.busy
            assert not broker.queue._dispatch.held
        assert not self.births - self.sent  # an insert that is repeated, or lands late, stores a job once

    # ---------------------------------------------------------------- the checks

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
        return life.rejected or used_up or stored.get("losses", 0) >= MAX_LOSSES


def _time(stored: dict[str, Any], field: str) -> float | None:
    return seconds_of(stored[field]) if field in stored else None


@pytest.fixture
def two_brokers(
    documents: Database[dict[str, Any]], store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[TwoBrokers]]:
    with surrounded(TwoBrokers, documents, monkeypatch):
        yield TwoBrokers


_UNANSWERED: Final = (Kind.HELD, Kind.LATE, Kind.LOST_REPLY)
#: One rule alone, by what it is about, in all the ways in which a verb may be interrupted.
ALONE: dict[str, Callable[[TwoBrokers], None]] = {
    **{
        f"insert-{kind.name}-{audits}-{reserved}": partial(
            TwoBrokers.an_insert_has_no_answer_while_all_goes_on,
            slot=0,
            job_id="f",
            kind=kind,
            audits=audits,
            reserved=reserved,
            delivered=reserved,
        )
        for kind in _UNANSWERED
        for audits in (0, 2)
        for reserved in (False, True)
    },
    **{
        f"{verdict}-{kind.name}-{seconds:g}": partial(
            TwoBrokers.a_verdict_has_no_answer_while_its_job_goes_on,
            slot=0,
            job_id="f",
            kind=kind,
            verdict=verdict,
            seconds=seconds,
            elsewhere=False,
            delivered=False,
        )
        for kind in _UNANSWERED
        for verdict in (wire.COMMIT, wire.ROLLBACK, wire.RELEASE)
        for seconds in (1.0, 7.0)
    },
    **{
        f"claim-{kind.name}": partial(
            TwoBrokers.a_claim_has_no_answer_beside_jobs_at_work,
            slot=0,
            at_work="f",
            later="f",
            kind=kind,
        )
        for kind in _UNANSWERED
    },
    **{
        f"silent-{answer}": partial(
            TwoBrokers.a_broker_is_silent_until_it_is_declared_dead, slot=0, answer=answer
        )
        for answer in (wire.COMMIT, wire.ROLLBACK, wire.RELEASE)
    },
}


def _swept(model: TwoBrokers) -> None:
    """What is at work at one broker while the other one sweeps is its own, and its commit is accepted."""
    model.sweep_and_audit(1)
    model.settle(0, wire.COMMIT, None, "all")


def _insert_repeated_and_late(model: TwoBrokers) -> None:
    """The repetition finds the id there; when the first copy lands, that job has ended."""
    model.push(1, [{**_PLAIN, "id": "f"}])
    model.an_insert_has_no_answer_while_all_goes_on(
        0, "f", Kind.LATE, audits=0, reserved=False, delivered=False
    )


def _two_promote(model: TwoBrokers) -> None:
    """Between what one has seen of a group, which has no head, and of its line, the other gives it one."""
    for seat in range(3):
        model.leave_seat(seat, died=False)
    model._come(1, model.brokers[1], 10)

    def works(broker: SmallBroker) -> None:
        model._push(broker, [model._job({**_PLAIN, "id": "d2", "group": "h"})])
        for _ in range(5):
            model.time.passes_inside(0.01)
            broker.interfere("tick")
        mine = [hand for hand in model._hands_of(broker) if hand.life.group == "h"]
        model._settle(broker, mine, wire.COMMIT, 0.0)
        for _ in range(5):
            model.time.passes_inside(0.01)

    model.works = works  # type: ignore[method-assign]
    model.inside = WORK
    model.brokers[0].line.fault = Fault(Kind.INSIDE_BEFORE, "aggregate")
    model._push(
        model.brokers[0], [model._job({**_PLAIN, "id": each, "group": "h"}) for each in ("a2", "b2", "c2")]
    )
    model.time_passes(2 * BEAT, None)


def _lost_promote(model: TwoBrokers) -> None:
    """A broker is killed between the insert of a group's first jobs and the promotion of the first."""
    model.brokers[0].line.fault = Fault(Kind.KILLED_BEFORE, "aggregate")
    model._push(model.brokers[0], [model._job({**_PLAIN, "id": each, "group": "h"}) for each in ("a2", "b2")])
    model.time_passes(BEAT, None)


def _second_within_its_window(model: TwoBrokers) -> None:
    """Of two jobs with one ``dedupe_id`` at two brokers, 3.5 s apart, the window being 5."""
    for slot, job_id in ((0, "a2"), (1, "b2")):
        model.push(slot, [{**_PLAIN, "id": job_id, "dedupe": Dedupe("y", 5.0)}])
        model.time_passes(1.0, None)
        model._pass(2.5)


ALONE |= {
    "dedupe": _second_within_its_window,
    "lost-promote": _lost_promote,
    "two-promote": _two_promote,
    "sweep": _swept,
    "late-insert": _insert_repeated_and_late,
}


@pytest.mark.parametrize("step", ALONE)
def test_one_verb_interrupted(two_brokers: type[TwoBrokers], step: str) -> None:
    run_alone(two_brokers, ALONE[step])


def test_no_job_is_lost_or_done_twice_whatever_fails(two_brokers: type[TwoBrokers]) -> None:
    check(two_brokers, 20, 30)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_no_job_is_lost_or_done_twice_whatever_fails_for_long(two_brokers: type[TwoBrokers]) -> None:
    check(two_brokers, 200, 50)
