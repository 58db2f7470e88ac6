"""Surroundings of a model of two brokers: time that passes, MongoDB that fails, brokers that die.

:class:`Fate` draws it; what producers and workers do, and what must hold, its heirs say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from integration.model_runs import Surroundings
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.queue import Delivery
from support.fakes import FakeWorker
from support.faulty_mongo import WRITES, Fault, Kind, Line
from support.small_broker import BEAT, DUTIES, NO_LIMITS, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

VISIBILITY: Final = 20.0

#: Heartbeats after which everything has come to its end, if all are well.
_LONG: Final = 200
#: What the other broker may do inside a verb, beside its duties: what its workers have.
WORK: Final = "work"

slots = st.sampled_from([0, 1])
seats = st.sampled_from([0, 1, 2])
faults = st.builds(
    Fault,
    kind=st.sampled_from(Kind),
    method=st.sampled_from(["", *WRITES]),
    skip=st.integers(0, 1),
    times=st.sampled_from([1, 1, 2, 1000]),
)
unanswered = st.sampled_from([Kind.HELD, Kind.LATE, Kind.LOST_REPLY])


@dataclass(eq=False, kw_only=True)
class Hand:
    """One delivery, as its worker sees it."""

    broker: SmallBroker
    queue: str
    receipt: bytes
    owner: str
    until: float
    open: bool = True
    fired: int = 0


class ModelWorker(FakeWorker):
    """Tells the model of each job that it gets, at the moment when it gets it."""

    def __init__(self, model: Fate, broker: SmallBroker, queue: str, prefetch: int) -> None:
        super().__init__(prefetch)
        self.model = model
        self.broker = broker
        self.queue = queue
        self.hands: list[Any] = []

    def deliver(self, deliveries: Any) -> None:
        self.hands += [self.model.delivered(self, delivery) for delivery in deliveries]

    @property
    def open_hands(self) -> list[Any]:
        return [hand for hand in self.hands if hand.open]

    def come(self) -> None:
        self.broker.queues.open(self.queue).attach(self)

    def leave(self, *, died: bool) -> None:
        self.broker.queues.open(self.queue).settling.worker_gone(self, died=died)


class Fate(RuleBasedStateMachine):
    """Two brokers and three seats for workers; ``limits``: settings of all queues, which ``queues`` names."""

    around: Surroundings
    limits: Mapping[str, Any] = NO_LIMITS
    queues: ClassVar[tuple[str, ...]] = ("mail",)
    emptied: ClassVar[tuple[str, ...]] = ("queue.mail", "owners", "limits")
    #: What a broker does in the middle of a verb of the other one, before its workers do what comes of it.
    before_work: ClassVar[tuple[str, ...]] = ("tick",)

    def __init__(self) -> None:
        super().__init__()
        self.documents, self.complaints = self.around.documents, self.around.complaints
        for name in self.emptied:
            self.documents[name].delete_many({})
        self.complaints.clear()
        self.time = VirtualTime()
        owner_ids = itertools.count()
        self.new_id = lambda: f"owner-{next(owner_ids)}"
        self.clock = VirtualClock(self.time)
        self.open: list[Any] = []
        self.lines: list[Line] = []
        self.workers: list[Any] = [None, None, None]
        self.sound = True
        self.inside = "sweep"
        self.interfering = False
        self.brokers: list[SmallBroker] = []
        self.begin()
        self.brokers = [self._new_broker(slot) for slot in (0, 1)]

    # ---------------------------------------------------------------- what its heirs say

    def begin(self) -> None:
        """Before there are brokers."""

    def born(self, collection: str, documents: list[dict[str, Any]], stored: set[int]) -> None:
        """A statement has stored these, known to its broker or not; ``stored``: numbers of those before."""

    def delivered(self, worker: ModelWorker, delivery: Delivery) -> Hand:
        """A worker gets a job, if it may have it: as which delivery the model knows it."""
        raise NotImplementedError

    def commit(self, hands: list[Any]) -> None:
        raise NotImplementedError

    def runs_out(self, hand: Any) -> None:
        """The time of this delivery is over."""

    def died_with(self, hand: Any) -> None:
        """A worker has died that had this."""

    def stopping(self) -> None:
        """A broker that stops has given back what it had."""

    def look_after(self, broker: SmallBroker) -> None:
        """Do its duties, at the end of a run, when nothing fails any more."""
        broker.sweep()
        broker.audit()

    def unfinished(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def holds(self) -> None:
        """All is as the model says."""
        raise NotImplementedError

    # ----------------------------------------------------------- what workers do

    @rule(seat=seats, died=st.booleans())
    def leave(self, seat: int, *, died: bool) -> None:
        self._begin()
        self.leave_seat(seat, died=died)

    # ---------------------------------------------------------- what brokers do

    @rule(slot=slots)
    def sweep_and_audit(self, slot: int) -> None:
        self._begin()
        self.brokers[slot].sweep()
        self.brokers[slot].audit()

    @rule(slot=slots, killed=st.booleans())
    def end(self, slot: int, *, killed: bool) -> None:
        self._begin()
        if killed:
            self.brokers[slot].line.dead = True
        else:
            self._stop(slot)

    # ---------------------------------------------------------------- what fate does

    @rule(seconds=st.sampled_from([0.1, 1.0, 2 * BEAT, VISIBILITY]), silent=st.sampled_from([None, 0, 1]))
    def time_passes(self, seconds: float, silent: int | None) -> None:
        self._begin()
        self.let_pass(seconds, silent)

    @rule(slot=slots, fault=faults)
    def arm(self, slot: int, fault: Fault) -> None:
        self.brokers[slot].line.fault = Fault(fault.kind, fault.method, fault.skip, fault.times)

    @rule(slot=slots, delivered=st.booleans())
    def held_replies_are_let_go(self, slot: int, *, delivered: bool) -> None:
        self._begin()
        self.brokers[slot].line.let_go(delivered=delivered)

    @rule(which=st.sampled_from(["oldest", "all"]))
    def late_statements_land(self, which: str) -> None:
        """Also those of brokers that are no more."""
        self._begin()
        late = [line for line in self.lines if line.late]
        for line in late[:1] if which == "oldest" else late:
            line.land()

    @rule(duty=st.sampled_from([*DUTIES, WORK]))
    def choose_what_the_other_does_inside(self, duty: str) -> None:
        self.inside = duty

    # ------------------------------------------------------------------- brokers

    def _do(self, slot: int, order: Callable[[SmallBroker], object]) -> None:
        with suppress(SluiceError):  # what came of it, MongoDB knows
            order(self.brokers[slot])

    def _new_broker(self, slot: int) -> SmallBroker:
        stored: set[int] = set()
        line = Line(
            lambda name, documents: self.born(name, documents, stored),
            self.time,
            lambda: self._interfere(1 - slot),
        )
        self.lines.append(line)
        name = f"broker {slot}"
        return SmallBroker(name, self.documents, self.time, self.clock, line, self.new_id, self.limits)

    def _let_all_go(self, broker: SmallBroker, *, delivered: bool) -> None:
        broker.line.let_go(delivered=delivered)
        self.let_pass(1.0)
        broker.line.land()

    def _interfere(self, slot: int) -> None:
        """The other broker acts in the middle of a verb of this one, but not in the middle of that."""
        if self.interfering or slot >= len(self.brokers) or self.brokers[slot].line.dead:
            return
        self.interfering = True
        try:
            if self.inside == WORK:
                self.works(self.brokers[slot])
            else:
                self._do_inside(self.brokers[slot], self.inside)
        finally:
            self.interfering = False

    def _replace(self, slot: int) -> None:
        """A broker is no more: another one comes in its place, to which its workers connect again."""
        former, new = self.brokers[slot], self._new_broker(slot)
        self.brokers[slot] = new
        for hand in self.hands_of(former):
            hand.open = False
        for seat, worker in enumerate(self.workers):
            if worker and worker.broker is former:
                self.put_to_work(seat, new, worker.prefetch, worker.queue)
        come_to_rest()

    def _stop(self, slot: int) -> None:
        broker = self.brokers[slot]
        for hand in self.hands_of(broker):
            hand.open = False
        broker.release_all()
        self.stopping()
        broker.end()
        self._replace(slot)

    def _bury_the_dead(self) -> None:
        for slot, broker in enumerate(self.brokers):
            if broker.line.dead:
                self._replace(slot)

    def hands_of(self, broker: SmallBroker) -> list[Any]:
        return [hand for hand in self.open if hand.open and hand.broker is broker]

    def put_to_work(self, seat: int, broker: SmallBroker, prefetch: int, queue: str = "mail") -> None:
        worker = self.workers[seat] = ModelWorker(self, broker, queue, prefetch)
        worker.come()

    def leave_seat(self, seat: int, *, died: bool) -> None:
        """A worker goes, if there is one."""
        worker, self.workers[seat] = self.workers[seat], None
        if worker is None:
            return
        for hand in worker.open_hands:
            hand.open = False
            if died:
                self.died_with(hand)
        worker.leave(died=died)

    def _do_inside(self, broker: SmallBroker, duty: str) -> None:
        """A duty in the middle of the other broker's verb: what has run out is no longer its worker's."""
        if duty == "tick":
            self._time_out(broker)
        broker.interfere(duty)

    def works(self, broker: SmallBroker) -> None:
        """Let its workers do what they have, or get now."""
        for duty in self.before_work:
            self._do_inside(broker, duty)
        self.time.passes_inside(0.01)
        self.commit(self.hands_of(broker))
        for _ in range(3):  # commits are gathered for a moment
            self.time.passes_inside(0.01)

    def _live_owners(self) -> set[str]:
        return {document["_id"] for document in self.documents["owners"].find({"state": "live"}, {"_id": 1})}

    # ---------------------------------------------------------------------- time

    def _begin(self) -> None:
        self.sound = False
        self.time.passes(0.002)

    def let_pass(self, seconds: float, silent: int | None = None) -> None:
        while seconds > 0:
            step = min(seconds, BEAT)
            seconds -= step
            self.time.passes(step)
            for slot, broker in enumerate(self.brokers):
                if slot != silent:
                    self._duties(broker, beat=step == BEAT)

    def _duties(self, broker: SmallBroker, *, beat: bool) -> None:
        if beat:
            broker.beat()
        self._time_out(broker)
        broker.tick()
        for seat, worker in enumerate(self.workers):
            if worker and worker.hung_up:
                self.leave_seat(seat, died=True)

    def _time_out(self, broker: SmallBroker) -> None:
        """Time out deliveries, as the tick of this broker is about to."""
        for hand in self.hands_of(broker):
            if hand.until <= broker.looked_at:
                hand.open = False
                self.runs_out(hand)

    def _heal(self) -> None:
        for line in self.lines:
            line.fault = None
            line.land()
            line.let_go(delivered=False)
        come_to_rest()
        for broker in self.brokers:
            for queue in broker.queues:
                queue.pause(frozenset())
        for seat in range(len(self.workers)):
            self.leave_seat(seat, died=False)

    def teardown(self) -> None:
        try:
            if self.sound:
                self._heal()
                self._work_until_all_is_done()
        finally:
            self.end_all()

    def _work_until_all_is_done(self) -> None:
        workers = [ModelWorker(self, broker, name, 100) for broker in self.brokers for name in self.queues]
        for worker in workers:
            worker.come()
        for _ in range(_LONG):
            self.let_pass(BEAT)
            self.commit([hand for worker in workers for hand in worker.open_hands])
            for broker in self.brokers:
                self.look_after(broker)
            self.holds()
            if not self.unfinished():
                break
        self.let_pass(BEAT)
        self.holds()
        assert self.unfinished() == []

    def end_all(self) -> None:
        """End all that still wait."""
        for line in self.lines:
            line.dead = True
        self.time.passes(10 * VISIBILITY)

    def _expect(self, truth: object, complaint: str) -> None:
        """Noted, since some of those who call this have every error shielded or repeated."""
        if not truth:
            self.complaints.append(complaint)
