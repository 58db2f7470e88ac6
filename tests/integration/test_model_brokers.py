"""Two brokers and three workers against a short model, while MongoDB fails and brokers die.

Whatever happens: no job is lost, none is committed twice by accepted answers, nobody works on a job
that another one holds, attempts count exactly the deliveries that failed, and of duplicates one is stored.
Of a group one job at a time is at work, none before one that was confirmed before it was pushed, and no group
stands still for good.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pymongo.database import Database

from integration.model_of_jobs import Lives
from integration.model_of_two_brokers import VISIBILITY, WORK, seats, slots, unanswered
from integration.model_runs import check, run_alone, surrounded
from sluicemq.protocol import wire
from sluicemq_broker.job import Dedupe, Job
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueStore
from support.faulty_mongo import Fault, Kind
from support.small_broker import BEAT, SmallBroker
from support.virtual_time import come_to_rest

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


class TwoBrokers(Lives):
    """Rules are what workers, producers, brokers and fate do; the model hears what comes of it."""

    @initialize()
    def everybody_is_at_work(self) -> None:
        for seat in range(len(self.workers)):
            self.put_to_work(seat, self.brokers[seat % 2], 2)
        for broker, names, group in zip(self.brokers, ("abc", "de"), (None, "g"), strict=True):
            self.push_all(broker, [self.job_of({**_PLAIN, "id": name, "group": group}) for name in names])

    # ----------------------------------------------------------- what people do

    @rule(slot=slots, jobs=st.lists(orders, min_size=1, max_size=3))
    def push(self, slot: int, jobs: list[dict[str, Any]]) -> None:
        self._begin()
        self.push_all(self.brokers[slot], [self.job_of(job) for job in jobs])

    @rule(seat=seats, slot=slots, prefetch=st.integers(1, 3))
    def come(self, seat: int, slot: int, prefetch: int) -> None:
        self._begin()
        self.leave_seat(seat, died=False)
        self.put_to_work(seat, self.brokers[slot], prefetch)

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
        mine = worker.open_hands
        late = [hand for hand in worker.hands if not hand.open]
        chosen = {"first": mine[:1], "all": mine, "late": late[-2:]}[which]
        if chosen:
            self.settle_all(worker.broker, chosen, kind, delay)

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
        of: dict[str, list[Any]] = {"change": [{"priority": 5, "delay": 1.0}], "cancel": [None, ANYBODY]}
        if order == "redrive":  # which goes on beside all else
            if before:
                self.lives[job_id].to_redrive = True
            self._do(slot, lambda broker: broker.dead_letters.redrive("mail", {"ids": [job_id]}, None))
            return
        self._do(slot, lambda broker: getattr(broker.job_admin, order)("mail", job_id, *of.get(order, ())))
        if before:
            self._ordered(order, before, self._stored(job_id))

    # ---------------------------------------------------------- what brokers do

    @rule(slot=slots, answer=st.sampled_from([None, wire.COMMIT, wire.COMMIT, wire.ROLLBACK, wire.RELEASE]))
    def a_broker_is_silent_until_it_is_declared_dead(self, slot: int, answer: str | None) -> None:
        """What its workers say then, it hears before it learns of that."""
        self._begin()
        self.let_pass(8 * BEAT, slot)
        self.brokers[1 - slot].sweep()
        silent = self.brokers[slot]
        hands = self.hands_of(silent)
        if answer and hands:
            self.settle_all(silent, hands, answer, 0.0)

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
        self.put_to_work(1 - slot, self.brokers[1 - slot], 10)
        if reserved:
            self.put_to_work(slot, broker, 10)
        self.let_pass(0.1)
        broker.line.fault = Fault(kind, "insert")
        self.push_all(broker, [self.job_of({**_PLAIN, "id": job_id})])
        self.let_pass(2 * BEAT)  # in which the other one looks
        for _ in range(audits):
            broker.audit()
        for node in self.brokers:
            if hands := self.hands_of(node):
                self.settle_all(node, hands, wire.COMMIT, 0.0)
        self.let_pass(0.1)
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
        hands = self.hands_of(broker)[:1]
        if not hands:
            return
        writes = {wire.COMMIT: "delete_many", wire.ROLLBACK: "bulk_write", wire.RELEASE: "update_many"}
        statement = writes[verdict]
        broker.line.fault = Fault(kind, statement)
        self.settle_all(broker, hands, verdict, 0.0)
        come_to_rest()
        self.let_pass(0.01)
        pushed_at = self.brokers[1 - slot if elsewhere else slot]
        self.push_all(pushed_at, [self.job_of({**_PLAIN, "id": hands[0].life.job_id})])
        self.let_pass(seconds)
        self._let_all_go(broker, delivered=delivered)
        self.let_pass(seconds)

    @rule(slot=slots, at_work=job_ids, later=job_ids, kind=unanswered)
    def a_claim_has_no_answer_beside_jobs_at_work(
        self, slot: int, at_work: str, later: str, kind: Kind
    ) -> None:
        self._begin()
        broker = self._at_work(slot, at_work)
        self.push_all(broker, [self.job_of({**_PLAIN, "id": later, "delay": 2})])
        self.let_pass(1.9)
        broker.line.fault = Fault(kind, "update_many")
        self.let_pass(1.0)
        self._let_all_go(broker, delivered=False)

    def _at_work(self, slot: int, job_id: str) -> SmallBroker:
        """A broker whose worker has something, if there is anything, and takes more."""
        broker = self.brokers[slot]
        for seat in range(len(self.workers)):
            self.leave_seat(seat, died=False)
        self.put_to_work(slot, broker, 10)
        self.let_pass(0.1)
        if not self.hands_of(broker):
            self.push_all(broker, [self.job_of({**_PLAIN, "id": job_id})])
            self.let_pass(0.1)
        return broker

    # ------------------------------------------------------------------- pushes

    def job_of(self, order: dict[str, Any]) -> Job:
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

    # ------------------------------------------------------------------- brokers

    def _ordered(self, order: str, before: dict[str, Any], after: dict[str, Any] | None) -> None:
        """What became of a job for which there was an order; nothing else runs meanwhile."""
        life = self.lives[before["_id"]]
        if order == "cancel" and after is None:
            waited = before["state"] in ("ready", "waiting")
            self._expect(waited, f"{life} was cancelled while it was {before['state']}")
            life.cancelled = True

    def _stored(self, job_id: str) -> dict[str, Any] | None:
        return self.jobs.find_one({"_id": job_id})


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
            TwoBrokers.a_claim_has_no_answer_beside_jobs_at_work, slot=0, at_work="f", later="f", kind=kind
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
    model.put_to_work(1, model.brokers[1], 10)

    def works(broker: SmallBroker) -> None:
        model.push_all(broker, [model.job_of({**_PLAIN, "id": "d2", "group": "h"})])
        for _ in range(5):
            model.time.passes_inside(0.01)
            broker.interfere("tick")
        mine = [hand for hand in model.hands_of(broker) if hand.life.group == "h"]
        model.settle_all(broker, mine, wire.COMMIT, 0.0)
        for _ in range(5):
            model.time.passes_inside(0.01)

    model.works = works  # type: ignore[method-assign]
    model.inside = WORK
    model.brokers[0].line.fault = Fault(Kind.INSIDE_BEFORE, "aggregate")
    model.push_all(
        model.brokers[0], [model.job_of({**_PLAIN, "id": name, "group": "h"}) for name in ("a2", "b2", "c2")]
    )
    model.time_passes(2 * BEAT, None)


def _lost_promote(model: TwoBrokers) -> None:
    """A broker is killed between the insert of a group's first jobs and the promotion of the first."""
    model.brokers[0].line.fault = Fault(Kind.KILLED_BEFORE, "aggregate")
    model.push_all(
        model.brokers[0], [model.job_of({**_PLAIN, "id": name, "group": "h"}) for name in ("a2", "b2")]
    )
    model.time_passes(BEAT, None)


def _second_within_its_window(model: TwoBrokers) -> None:
    """Of two jobs with one ``dedupe_id`` at two brokers, 3.5 s apart, the window being 5."""
    for slot, job_id in ((0, "a2"), (1, "b2")):
        model.push(slot, [{**_PLAIN, "id": job_id, "dedupe": Dedupe("y", 5.0)}])
        model.time_passes(1.0, None)
        model.let_pass(2.5)


ALONE |= {
    "dedupe": _second_within_its_window,
    "lost-promote": _lost_promote,
    "two-promote": _two_promote,
    "sweep": _swept,
    "late-insert": _insert_repeated_and_late,
}


@pytest.mark.one_in(4, always=["sweep"])
@pytest.mark.parametrize("step", ALONE)
def test_one_verb_interrupted(two_brokers: type[TwoBrokers], step: str) -> None:
    run_alone(two_brokers, ALONE[step])


def test_no_job_is_lost_or_done_twice_whatever_fails(two_brokers: type[TwoBrokers]) -> None:
    check(two_brokers, 4, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_job_is_lost_or_done_twice_whatever_fails_for_long(
    two_brokers: type[TwoBrokers], times: int
) -> None:
    check(two_brokers, 50 * times, 50)
