"""The model of two brokers, with queues between which jobs go on: moves, children, dead letters, schedules.

All that may fail there may fail here too, also between what a move has seen and its transaction.
Every job is pushed once, under an id of its own, and most are kept when they are done: so each lies in one
queue at every moment, never in two, with all of its history. Of a job that waits for children as many are
left as are there; it ends once, and not before them. Each run of a schedule is pushed once. Groups keep their
order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from pymongo.database import Database

from fakes import FakeWorker
from faulty_mongo import Fault, Kind
from sluicemq import wire
from sluicemq.errors import Duplicate, SluiceError
from sluicemq_broker.job import Job, Misfire, Timetable
from sluicemq_broker.queue import Onward, Push, Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.store import QueueStore, Schedule, seconds
from small_broker import BEAT, SmallBroker
from two_brokers import VISIBILITY, WORK, Fate, check, run_alone, seats, slots, surrounded
from virtual_time import come_to_rest

QUEUES: Final = ("mail", "next", "letters")
#: Seconds for which jobs are kept when they are done: for ever.
KEPT: Final = 10.0**6
#: Seconds between two runs of the schedule.
EVERY: Final = 7.0
_LONG: Final = 200
_MOVES: Final = (wire.FORWARD, wire.FAN_OUT)
_UNFINISHED: Final = ("ready", "waiting", "reserved")

verdicts = st.sampled_from([wire.COMMIT, wire.COMMIT, wire.ROLLBACK, wire.REJECT, *_MOVES, *_MOVES])
inside = st.sampled_from(
    [Kind.HELD, Kind.LOST_REPLY, Kind.CUT, Kind.INSIDE_BEFORE, Kind.INSIDE_AFTER, Kind.KILLED_AFTER]
)

#: Where a move may be interrupted: as a whole, and at the statements in it.
STATEMENTS: Final = (
    "transaction",
    "transaction",
    "delete_many",
    "bulk_write",
    "insert",
    "find_one_and_update",
)

_Stored = dict[str, Any]


@dataclass(eq=False)
class Hand:
    """One delivery, as its worker sees it."""

    job_id: str
    queue: str
    broker: SmallBroker
    receipt: bytes
    owner: str
    until: float
    open: bool = True
    fired: int = 0


class ModelWorker(FakeWorker):
    """Tells the model of each job that it gets, at the moment when it gets it."""

    def __init__(
        self, model: TwoBrokersWithPipelines, broker: SmallBroker, queue: str, prefetch: int
    ) -> None:
        super().__init__(prefetch)
        self.model = model
        self.broker = broker
        self.queue = queue
        self.hands: list[Hand] = []

    def deliver(self, deliveries: Any) -> None:
        self.hands += [self.model.delivered(self.broker, self.queue, each) for each in deliveries]


class TwoBrokersWithPipelines(Fate):
    """Rules are what workers, producers and people do."""

    limits: Mapping[str, Any] = MappingProxyType({"on_dead": "letters"})
    emptied: ClassVar[tuple[str, ...]] = (
        *(f"queue.{name}" for name in QUEUES),
        *("owners", "limits", "schedules"),
    )

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

    def _new_broker(self, slot: int) -> SmallBroker:
        broker = super()._new_broker(slot)
        for name in QUEUES:
            broker.queues.open(name)
        return broker

    @initialize()
    def everybody_is_at_work(self) -> None:
        timetable = Timetable(every=EVERY)
        schedule = Schedule(
            name="beat", queue="next", payload=b"beat", timetable=timetable, misfire=Misfire.ALL
        )
        self.brokers[0].schedules.put(schedule)
        for seat, queue in enumerate(QUEUES):
            self._come(seat, self.brokers[seat % 2], queue, 2)
        for slot, group in ((0, None), (1, "g")):
            self._push(slot, 2, group, kept=group is not None)

    # ----------------------------------------------------------- what people do

    @rule(slot=slots, count=st.integers(1, 3), group=st.sampled_from([None, "g"]), kept=st.booleans())
    def push(self, slot: int, count: int, group: str | None, *, kept: bool) -> None:
        self._begin()
        self._push(slot, count, group, kept=kept)

    @rule(seat=seats, slot=slots, queue=st.sampled_from(QUEUES), prefetch=st.integers(1, 3))
    def come(self, seat: int, slot: int, queue: str, prefetch: int) -> None:
        self._begin()
        self.leave_seat(seat, died=False)
        self._come(seat, self.brokers[slot], queue, prefetch)

    @rule(seat=seats, died=st.booleans())
    def leave(self, seat: int, *, died: bool) -> None:
        self._begin()
        self.leave_seat(seat, died=died)

    @rule(seat=seats, kind=verdicts, to=st.sampled_from(QUEUES[:2]), which=st.sampled_from(["first", "all"]))
    def settle(self, seat: int, kind: str, to: str, which: str) -> None:
        self._begin()
        worker = self.workers[seat]
        if worker:
            mine = [hand for hand in worker.hands if hand.open]
            self._settle(mine[:1] if which == "first" else mine, kind, to)

    @rule(slot=slots, number=st.integers(0, 20))
    def cancel(self, slot: int, number: int) -> None:
        self._begin()
        waiting = sorted(
            (name, each["_id"]) for name, each in self._there() if each["state"] in ("ready", "waiting")
        )
        if waiting:
            name, job_id = waiting[number % len(waiting)]
            self.cancelled.add(job_id)
            with suppress(SluiceError):
                self.brokers[slot].admin.cancel(name, job_id)

    # ---------------------------------------------------------- what brokers do

    @rule(slot=slots)
    def look_round(self, slot: int) -> None:
        self._begin()
        self.brokers[slot].round()

    @rule(slot=slots, kind=inside, duty=st.sampled_from([WORK, "sweep"]))
    def a_round_is_interrupted(self, slot: int, kind: Kind, duty: str) -> None:
        """In the middle of which the other one has its own, and its workers do what comes of it."""
        self._begin()
        self.leave_seat(1 - slot, died=False)
        self._come(1 - slot, self.brokers[1 - slot], "next", 3)
        self._pass(EVERY, slot)
        self.inside = duty
        self.brokers[slot].line.fault = Fault(kind, "transaction")
        self.brokers[slot].round()
        come_to_rest()
        self.brokers[slot].line.let_go(delivered=False)

    @rule(
        slot=slots,
        kind=inside,
        at=st.sampled_from(STATEMENTS),
        verdict=st.sampled_from([wire.COMMIT, *_MOVES]),
        delivered=st.booleans(),
    )
    def a_move_has_no_answer_while_all_goes_on(
        self, slot: int, kind: Kind, at: str, verdict: str, *, delivered: bool
    ) -> None:
        self._begin()
        broker = self._with_hands(slot)
        broker.line.fault = Fault(kind, at)
        self._settle(self._hands_of(broker), verdict, "next")
        come_to_rest()
        self._pass(1.0, slot)
        if not broker.line.dead:
            self._let_all_go(broker, delivered=delivered)

    @rule(slot=slots, answer=verdicts, theirs=verdicts)
    def a_broker_is_silent_until_it_is_declared_dead(self, slot: int, answer: str, theirs: str) -> None:
        """What its workers say then, it hears before it learns of that; others have its jobs by then."""
        self._begin()
        silent, other = self._with_hands(slot), self.brokers[1 - slot]
        hands = self._hands_of(silent)
        self.leave_seat(1 - slot, died=False)
        self._come(1 - slot, other, hands[0].queue if hands else "mail", 3)
        self._pass(8 * BEAT, slot)
        other.sweep()
        self._pass(0.1, slot)
        self._settle([hand for hand in hands if hand.open], answer, "next")
        come_to_rest()
        self._settle(self._hands_of(other), theirs, "next")

    # ---------------------------------------------------------- what must hold

    @invariant()
    def holds(self) -> None:
        """All is where it belongs."""
        come_to_rest()
        self._bury_the_dead()
        there = self._there()
        copies = Counter(each["_id"] for _, each in there)
        assert not [each for each, count in copies.items() if count > 1], there
        stored = {each["_id"]: each for _, each in there}
        for job_id in self.confirmed.keys() - stored.keys():
            assert self._may_be_gone(job_id), f"{job_id} is nowhere"
        for each in stored.values():
            self._check_story(each)
            self._check_end(each)
        for each in stored.values():
            self._check_family(each, stored)
        self._check_runs(stored)
        assert self.complaints == []
        self.sound = True

    def teardown(self) -> None:
        try:
            if self.sound:
                self._heal()
                self._work_until_all_is_done()
        finally:
            self.end_all()

    def _there(self) -> list[tuple[str, _Stored]]:
        """Every job, with its queue; not what those that have gone on leave behind."""
        return [
            (name, each)
            for name in QUEUES
            for each in self.documents[f"queue.{name}"].find({"forwarded_to": {"$exists": False}})
        ]

    def _may_be_gone(self, job_id: str) -> bool:
        done = job_id in self.committed or job_id in self.parents
        return job_id in self.cancelled or (done and job_id not in self.kept)

    def _check_story(self, stored: _Stored) -> None:
        """What it is and where it has been; a job of a schedule, and its children, are no others."""
        job_id, passed, errors = stored["_id"], stored.get("passed", []), stored.get("errors", [])
        root = job_id.partition(".")[0] if "@" not in job_id else "beat"
        assert stored["payload"] == root.encode(), stored
        gone_on = sum("hold" in each for each in passed)
        assert self.have_gone[job_id] <= gone_on <= self.may_have_gone[job_id], stored
        if len(errors) < 10:
            assert sum(each["reason"] == "why" for each in errors) >= self.failed[job_id], stored

    def _check_end(self, stored: _Stored) -> None:
        job_id, state = stored["_id"], stored["state"]
        assert state == "done" or not self.accepted[job_id], f"committed, and is {stored}"
        if state == "done":
            assert job_id in self.committed or job_id in self.parents, stored
            assert self.ended_at.setdefault(job_id, stored["ended_at"]) == stored["ended_at"], stored

    def _check_family(self, stored: _Stored, all_stored: Mapping[str, _Stored]) -> None:
        """As many are left as it waits for; none is left of one that is done, unless a worker has said so."""
        awaited = [
            each["_id"]
            for each in all_stored.values()
            if each["state"] != "done" and _waits(stored, each.get("parent", {}))
        ]
        if stored["state"] == "waiting" and "children" in stored:
            assert len(awaited) == stored["children"]["left"] > 0, (stored, awaited)
        elif stored["state"] == "done":
            assert not awaited or stored["_id"] in self.committed, (stored, awaited)
        above = stored.get("parent", {}).get("id", "")
        if above and stored["state"] != "done" and "told" not in stored["parent"]:
            known = above in all_stored or above in self.cancelled or above in self.committed
            assert known, f"{stored} is there, and its parent has ended"

    def _check_runs(self, stored: Mapping[str, _Stored]) -> None:
        runs = [each for each in self.births if each.startswith("beat@") and "." not in each[29:]]
        twice = [each for each, count in self.births.items() if count > 1]
        assert not twice, f"{twice} are pushed twice"
        schedule = self.documents["schedules"].find_one()
        if schedule:
            due = (seconds(schedule["next_at"]) - seconds(schedule["begins_at"])) / EVERY - 1
            assert len(runs) == round(due), (runs, schedule)

    # ------------------------------------------------------------------- pushes

    def _push(self, slot: int, count: int, group: str | None, *, kept: bool) -> None:
        ids = [f"j{next(self.numbers)}" for _ in range(count)]
        keep = KEPT if kept else 0.0
        now = self.clock.now()
        jobs = [
            Job(
                each,
                each.encode(),
                eligible_at=now,
                max_attempts=3,
                visibility_timeout=VISIBILITY,
                keep_done=keep,
                group=group,
            )
            for each in ids
        ]
        self.kept |= set(ids if kept else ())
        self.began |= dict.fromkeys(ids if group else (), next(self.moments))
        broker = self.brokers[slot]

        def told(refused: dict[int, SluiceError], _existing: Any) -> None:
            if not broker.line.dead:
                stored = [each for at, each in enumerate(ids) if at not in refused]
                self.confirmed |= dict.fromkeys(stored, next(self.moments))

        broker.queue.push(Push(jobs, told))

    def born(self, collection: str, documents: list[_Stored], stored: set[int]) -> None:
        """A job that has come from another queue has been born there."""
        self.births.update(
            each["_id"] for each in documents if collection.startswith("queue.") and "passed" not in each
        )

    # ----------------------------------------------------------------- deliveries

    def delivered(self, broker: SmallBroker, queue: str, delivery: Delivery) -> Hand:
        """A worker gets a job that nobody else has, that has not ended, and whose turn it is."""
        job_id, live = delivery.job.id, self._live_owners()
        rivals = [hand for hand in self.open if hand.open and hand.job_id == job_id and hand.owner in live]
        self._expect(not rivals, f"{job_id} is delivered twice at the same time")
        self._expect(not self.accepted[job_id], f"{job_id} is delivered after its commit was accepted")
        if queue == "mail" and job_id in self.began and not self.may_have_gone[job_id]:
            self._in_turn(job_id)
        hand = Hand(job_id, queue, broker, delivery.receipt, delivery.job.owner, self.time.value + VISIBILITY)
        self.open.append(hand)
        return hand

    def _in_turn(self, job_id: str) -> None:
        before = [
            each for each in self.began if self.confirmed.get(each, self.began[job_id]) < self.began[job_id]
        ]
        passed = [
            each["_id"]
            for each in self.documents["queue.mail"].find({"_id": {"$in": before}, "wait.group": "g"})
            if "passed" not in each
        ]
        self._expect(not passed, f"{job_id} has overtaken {passed}")

    def _settle(self, hands: list[Hand], kind: str, to: str) -> None:
        if kind == wire.FAN_OUT:
            hands = [hand for hand in hands if hand.job_id.count(".") < 2]
        by_queue: dict[tuple[SmallBroker, str], list[Hand]] = {}
        for hand in hands:
            hand.open = False
            hand.fired = hand.broker.line.fired
            self._says(hand.job_id, kind)
            by_queue.setdefault((hand.broker, hand.queue), []).append(hand)
        for (broker, queue), these in by_queue.items():
            onward = _onward(kind, to)
            detail = b"result" if kind in (wire.COMMIT, wire.FAN_OUT) else "why"
            said = [Verdict(hand.receipt, kind, detail, 0.0, onward) for hand in these]
            broker.queues.open(queue).settle(said, Settlement(self._hearing(these, kind)))

    def _says(self, job_id: str, kind: str) -> None:
        """What may be true of it from now on."""
        if kind == wire.COMMIT:
            self.committed.add(job_id)
        elif kind == wire.FAN_OUT:
            self.parents.add(job_id)
            self.kept |= {f"{job_id}.1", f"{job_id}.2"}
        elif kind == wire.FORWARD:
            self.may_have_gone[job_id] += 1

    def _hearing(self, hands: list[Hand], kind: str) -> Any:
        def told(problems: dict[int, SluiceError]) -> None:
            for at, hand in enumerate(hands):
                if not hand.broker.line.dead:
                    self._hear(hand, kind, problems.get(at))

        return told

    def _hear(self, hand: Hand, kind: str, problem: SluiceError | None) -> None:
        what = f"{kind} of {hand.job_id}"
        if problem is not None:
            well = hand.owner in self._live_owners() and hand.broker.line.fired == hand.fired
            first = isinstance(problem, Duplicate) and kind == wire.FAN_OUT  # of a former life
            self._expect(not well or first, f"{what}: refused, but all was well: {problem!r}")
        elif kind == wire.COMMIT:
            self.accepted[hand.job_id] += 1
            self._expect(self.accepted[hand.job_id] == 1, f"{what}: accepted twice")
        elif kind == wire.FORWARD:
            self.have_gone[hand.job_id] += 1
        elif kind in (wire.ROLLBACK, wire.REJECT):
            self.failed[hand.job_id] += hand.owner in self._live_owners() and hand.broker.line.fired == 0

    # ------------------------------------------------------------------- brokers

    def _come(self, seat: int, broker: SmallBroker, queue: str, prefetch: int) -> None:
        worker = self.workers[seat] = ModelWorker(self, broker, queue, prefetch)
        broker.queues.open(queue).attach(worker)

    def seat(self, seat: int, broker: SmallBroker, former: ModelWorker) -> None:
        self._come(seat, broker, former.queue, former.prefetch)

    def leave_seat(self, seat: int, *, died: bool) -> None:
        worker, self.workers[seat] = self.workers[seat], None
        if worker is not None:
            for hand in worker.hands:
                hand.open = False
            worker.broker.queues.open(worker.queue).worker_gone(worker, died=died)

    def works(self, broker: SmallBroker) -> None:
        broker.interfere("round")
        broker.interfere("tick")
        self.time.passes_inside(0.01)
        self._settle(self._hands_of(broker), wire.COMMIT, "")
        for _ in range(3):  # commits are gathered for a moment
            self.time.passes_inside(0.01)

    def stopping(self) -> None:
        self.open = [hand for hand in self.open if hand.open]

    def _with_hands(self, slot: int) -> SmallBroker:
        """A broker one of whose workers has something, if there is anything."""
        broker = self.brokers[slot]
        if not self._hands_of(broker):
            self.leave_seat(slot, died=False)
            self._come(slot, broker, "mail", 2)
            self._push(slot, 1, None, kept=True)
            self._pass(0.1)
        return self.brokers[slot]

    # --------------------------------------------------------------------- the end

    def _work_until_all_is_done(self) -> None:
        self.documents["schedules"].delete_many({})
        workers = [ModelWorker(self, broker, name, 100) for broker in self.brokers for name in QUEUES]
        for worker in workers:
            worker.broker.queues.open(worker.queue).attach(worker)
        for _ in range(_LONG):
            self._pass(BEAT)
            self._settle([hand for worker in workers for hand in worker.hands if hand.open], wire.COMMIT, "")
            for broker in self.brokers:
                broker.sweep()
                broker.audit()
                broker.round()
            self.holds()
            if not self._unfinished():
                break
        self._pass(BEAT)
        self.holds()
        assert self._unfinished() == []

    def _unfinished(self) -> list[_Stored]:
        return [
            each
            for name, each in self._there()
            if each["state"] in _UNFINISHED or (each["state"] == "dead" and name != "letters")
        ]


def _waits(parent: _Stored, awaited: Mapping[str, Any]) -> bool:
    """Whether this is the parent that a job names, since that fan-out, and has not heard of its death."""
    by = parent.get("children", {}).get("by")
    return (awaited.get("id"), awaited.get("by")) == (parent["_id"], by) and "told" not in awaited


def _onward(kind: str, to: str) -> tuple[Onward, ...]:
    if kind == wire.FORWARD:
        return (Onward(to, None, {}),)
    if kind == wire.FAN_OUT:
        return tuple(Onward(name, None, {"keep_done": KEPT}) for name in ("next", "mail"))
    return ()


@pytest.fixture
def pipelines(
    documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[TwoBrokersWithPipelines]]:
    for name in QUEUES:
        QueueStore(documents, f"queue.{name}").prepare()
    with surrounded(TwoBrokersWithPipelines, documents, monkeypatch):
        yield TwoBrokersWithPipelines


def _child_interrupted(model: TwoBrokersWithPipelines, kind: Kind, at: str) -> None:
    """Its parent was one of those at work."""
    model.a_move_has_no_answer_while_all_goes_on(0, Kind.CUT, "never", wire.FAN_OUT, delivered=True)
    model.come(0, 0, "next", 3)
    model.time_passes(1.0, None)
    model.a_move_has_no_answer_while_all_goes_on(0, kind, at, wire.COMMIT, delivered=False)


#: One move alone, in all the ways in which it may be interrupted.
_KINDS: Final = (Kind.LOST_REPLY, Kind.CUT, Kind.INSIDE_BEFORE, Kind.KILLED_BEFORE, Kind.KILLED_AFTER)
ALONE: Final[dict[str, Callable[[TwoBrokersWithPipelines], None]]] = {
    **{
        f"{verdict}-{kind.name}-{at}": partial(
            TwoBrokersWithPipelines.a_move_has_no_answer_while_all_goes_on,
            slot=0,
            kind=kind,
            at=at,
            verdict=verdict,
            delivered=False,
        )
        for verdict in _MOVES
        for kind in _KINDS
        for at in ("transaction", "insert")
    },
    **{
        f"child-{kind.name}-{at}": partial(_child_interrupted, kind=kind, at=at)
        for kind in _KINDS
        for at in ("transaction", "delete_many")
    },
    **{
        f"round-{kind.name}": partial(
            TwoBrokersWithPipelines.a_round_is_interrupted, slot=0, kind=kind, duty=WORK
        )
        for kind in _KINDS
    },
    **{
        f"silent-{answer}-{theirs}": partial(
            TwoBrokersWithPipelines.a_broker_is_silent_until_it_is_declared_dead,
            slot=0,
            answer=answer,
            theirs=theirs,
        )
        for answer in _MOVES
        for theirs in (wire.COMMIT, wire.FORWARD)
    },
}


@pytest.mark.parametrize("step", ALONE)
def test_one_move_interrupted(pipelines: type[TwoBrokersWithPipelines], step: str) -> None:
    run_alone(pipelines, ALONE[step])


def test_each_job_is_in_one_queue_whatever_fails(pipelines: type[TwoBrokersWithPipelines]) -> None:
    check(pipelines, 20, 30)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_each_job_is_in_one_queue_whatever_fails_for_long(pipelines: type[TwoBrokersWithPipelines]) -> None:
    check(pipelines, 200, 50)
