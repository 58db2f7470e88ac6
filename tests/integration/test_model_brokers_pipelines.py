"""The model of two brokers, with queues between which jobs go on: moves, children, dead letters, schedules.

All that may fail there may fail here too, also between what a move has seen and its transaction.
Every job is pushed once, under an id of its own, and most are kept when they are done: so each lies in one
queue at every moment, never in two, with all of its history. Of a job that waits for children as many are
left as are there; it ends once, and not before them. Each run of a schedule is pushed once. Groups keep their
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pymongo.database import Database

from integration.model_of_pipelines import EVERY, QUEUES, JobHand, Stories
from integration.model_of_two_brokers import VISIBILITY, WORK, seats, slots
from integration.model_runs import check, run_alone, surrounded
from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import Job, Misfire, Timetable
from sluicemq_broker.queue import Onward, Push, Settlement, Verdict
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueStore, Schedule
from support.faulty_mongo import Fault, Kind
from support.long_forms import short_where
from support.small_broker import BEAT, SmallBroker
from support.virtual_time import come_to_rest

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

#: Seconds for which jobs are kept when they are done: for ever.
KEPT: Final = 10.0**6
_MOVES: Final = (wire.FORWARD, wire.FAN_OUT)

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


class TwoBrokersWithPipelines(Stories):
    """Rules are what workers, producers and people do."""

    @initialize()
    def everybody_is_at_work(self) -> None:
        timetable = Timetable(every=EVERY)
        schedule = Schedule(
            name="beat", queue="next", payload=b"beat", timetable=timetable, misfire=Misfire.ALL
        )
        self.brokers[0].schedules.put(schedule, ANYBODY)
        for seat, queue in enumerate(QUEUES):
            self.put_to_work(seat, self.brokers[seat % 2], 2, queue)
        for slot, group in ((0, None), (1, "g")):
            self.push_all(slot, 2, group, kept=group is not None)

    # ----------------------------------------------------------- what people do

    @rule(slot=slots, count=st.integers(1, 3), group=st.sampled_from([None, "g"]), kept=st.booleans())
    def push(self, slot: int, count: int, group: str | None, *, kept: bool) -> None:
        self._begin()
        self.push_all(slot, count, group, kept=kept)

    @rule(seat=seats, slot=slots, queue=st.sampled_from(QUEUES), prefetch=st.integers(1, 3))
    def come(self, seat: int, slot: int, queue: str, prefetch: int) -> None:
        self._begin()
        self.leave_seat(seat, died=False)
        self.put_to_work(seat, self.brokers[slot], prefetch, queue)

    @rule(seat=seats, kind=verdicts, to=st.sampled_from(QUEUES[:2]), which=st.sampled_from(["first", "all"]))
    def settle(self, seat: int, kind: str, to: str, which: str) -> None:
        self._begin()
        worker = self.workers[seat]
        if worker:
            mine = worker.open_hands
            self.settle_all(mine[:1] if which == "first" else mine, kind, to)

    @rule(slot=slots, number=st.integers(0, 20))
    def cancel(self, slot: int, number: int) -> None:
        self._begin()
        waiting = sorted(
            (name, document["_id"])
            for name, document in self._there()
            if document["state"] in ("ready", "waiting")
        )
        if waiting:
            name, job_id = waiting[number % len(waiting)]
            self.cancelled.add(job_id)
            with suppress(SluiceError):
                self.brokers[slot].job_admin.cancel(name, job_id, None, ANYBODY)

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
        self.put_to_work(1 - slot, self.brokers[1 - slot], 3, "next")
        self.let_pass(EVERY, slot)
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
        self.settle_all(self.hands_of(broker), verdict, "next")
        come_to_rest()
        self.let_pass(1.0, slot)
        if not broker.line.dead:
            self._let_all_go(broker, delivered=delivered)

    @rule(slot=slots, answer=verdicts, theirs=verdicts)
    def a_broker_is_silent_until_it_is_declared_dead(self, slot: int, answer: str, theirs: str) -> None:
        """What its workers say then, it hears before it learns of that; others have its jobs by then."""
        self._begin()
        silent, other = self._with_hands(slot), self.brokers[1 - slot]
        hands = self.hands_of(silent)
        self.leave_seat(1 - slot, died=False)
        self.put_to_work(1 - slot, other, 3, hands[0].queue if hands else "mail")
        self.let_pass(8 * BEAT, slot)
        other.sweep()
        self.let_pass(0.1, slot)
        self.settle_all([hand for hand in hands if hand.open], answer, "next")
        come_to_rest()
        self.settle_all(self.hands_of(other), theirs, "next")

    # ------------------------------------------------------------------- pushes

    def push_all(self, slot: int, count: int, group: str | None, *, kept: bool) -> None:
        ids = [f"j{next(self.numbers)}" for _ in range(count)]
        keep = KEPT if kept else 0.0
        now = self.clock.now()
        jobs = [
            Job(
                job_id,
                job_id.encode(),
                eligible_at=now,
                max_attempts=3,
                visibility_timeout=VISIBILITY,
                keep_done=keep,
                group=group,
            )
            for job_id in ids
        ]
        self.kept |= set(ids if kept else ())
        self.began |= dict.fromkeys(ids if group else (), next(self.moments))
        broker = self.brokers[slot]

        def told(refused: dict[int, SluiceError], _existing: Any) -> None:
            if not broker.line.dead:
                stored = [job_id for at, job_id in enumerate(ids) if at not in refused]
                self.confirmed |= dict.fromkeys(stored, next(self.moments))

        broker.queue.intake.push(Push(jobs, told))

    # ----------------------------------------------------------------- deliveries

    def commit(self, hands: list[JobHand]) -> None:
        self.settle_all(hands, wire.COMMIT, "")

    def settle_all(self, hands: list[JobHand], kind: str, to: str) -> None:
        if kind == wire.FAN_OUT:
            hands = [hand for hand in hands if hand.job_id.count(".") < 2]
        by_queue: dict[tuple[SmallBroker, str], list[JobHand]] = {}
        for hand in hands:
            hand.open = False
            hand.fired = hand.broker.line.fired
            hand.ours = hand.owner in hand.broker.owners.own_ids()
            self._says(hand.job_id, kind)
            by_queue.setdefault((hand.broker, hand.queue), []).append(hand)
        for (broker, queue), these in by_queue.items():
            onward = _onward(kind, to)
            detail = b"result" if kind in (wire.COMMIT, wire.FAN_OUT) else "why"
            said = [Verdict(hand.receipt, kind, detail, 0.0, onward) for hand in these]
            broker.queues.open(queue).settling.settle(said, Settlement(self._hearing(these, kind)))

    # ------------------------------------------------------------------- brokers

    def stopping(self) -> None:
        self.open = [hand for hand in self.open if hand.open]

    def _with_hands(self, slot: int) -> SmallBroker:
        """A broker one of whose workers has something, if there is anything."""
        broker = self.brokers[slot]
        if not self.hands_of(broker):
            self.leave_seat(slot, died=False)
            self.put_to_work(slot, broker, 2)
            self.push_all(slot, 1, None, kept=True)
            self.let_pass(0.1)
        return self.brokers[slot]

    # --------------------------------------------------------------------- the end

    def look_after(self, broker: SmallBroker) -> None:
        super().look_after(broker)
        broker.round()

    def _work_until_all_is_done(self) -> None:
        self.documents["schedules"].delete_many({})
        super()._work_until_all_is_done()


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


_SHORT: Final = (
    *("FORWARD-CUT-insert", "FORWARD-KILLED_BEFORE-insert", "child-CUT-delete_many"),
    *("FANOUT-LOST_REPLY-transaction", "FANOUT-CUT-transaction", "FANOUT-KILLED_AFTER-transaction"),
    *("child-LOST_REPLY-transaction", "child-CUT-transaction", "child-KILLED_BEFORE-transaction"),
    *("silent-FORWARD-FORWARD", "silent-FANOUT-COMMIT"),
)


def _is_short(step: str) -> bool:
    """A whole move in each way in which it may be interrupted; of what is within it one or two."""
    return (step.startswith(("FORWARD-", "round-")) and "insert" not in step) or step in _SHORT


@pytest.mark.parametrize("step", short_where(ALONE, _is_short))
def test_one_move_interrupted(pipelines: type[TwoBrokersWithPipelines], step: str) -> None:
    run_alone(pipelines, ALONE[step])


def test_each_job_is_in_one_queue_whatever_fails(pipelines: type[TwoBrokersWithPipelines]) -> None:
    check(pipelines, 3, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_each_job_is_in_one_queue_whatever_fails_for_long(
    pipelines: type[TwoBrokersWithPipelines], times: int
) -> None:
    check(pipelines, 50 * times, 50)
