"""What a model of two brokers has around it: time that passes, MongoDB that fails, brokers that die.

:class:`Fate` draws it; what producers and workers do, and what must hold, its heirs say.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pymongo.database import Database

from faulty_mongo import WRITES, Fault, Kind, Line
from sluicemq.errors import SluiceError
from sluicemq_broker.doors.smq.administration import Admin
from small_broker import BEAT, DUTIES, NO_LIMITS, SmallBroker, VirtualClock
from virtual_time import VirtualTime, come_to_rest

VISIBILITY: Final = 20.0

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


@dataclass
class Surroundings:
    """What the fixtures give to every run."""

    documents: Database[dict[str, Any]]
    complaints: list[str]
    monkeypatch: pytest.MonkeyPatch


class Fate(RuleBasedStateMachine):
    """Two brokers and three seats for workers; ``settings``: those of all queues."""

    around: Surroundings
    limits: Mapping[str, Any] = NO_LIMITS
    emptied: ClassVar[tuple[str, ...]] = ("queue.mail", "owners", "limits")

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

    def runs_out(self, hand: Any) -> None:
        """The time of this delivery is over."""

    def seat(self, seat: int, broker: SmallBroker, former: Any) -> None:
        """A worker comes, in the place of one whose broker is no more."""

    def leave_seat(self, seat: int, *, died: bool) -> None:
        """A worker goes, if there is one."""

    def works(self, broker: SmallBroker) -> None:
        """Its workers do what they have, or get now."""

    def stopping(self) -> None:
        """A broker that stops has given back what it had."""

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

    # ---------------------------------------------------------------- what fate does

    @rule(seconds=st.sampled_from([0.1, 1.0, 2 * BEAT, VISIBILITY]), silent=st.sampled_from([None, 0, 1]))
    def time_passes(self, seconds: float, silent: int | None) -> None:
        self._begin()
        self._pass(seconds, silent)

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

    def _do(self, slot: int, order: Callable[[Admin], object]) -> None:
        with suppress(SluiceError):  # what came of it, MongoDB knows
            order(self.brokers[slot].admin)

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
        self._pass(1.0)
        broker.line.land()

    def _interfere(self, slot: int) -> None:
        """The other broker acts in the middle of a verb of this one, but not in the middle of that."""
        if self.interfering or slot >= len(self.brokers) or self.brokers[slot].line.dead:
            return
        self.interfering = True
        try:
            if self.inside == "tick":
                self._time_out(self.brokers[slot])
            if self.inside == WORK:
                self.works(self.brokers[slot])
            else:
                self.brokers[slot].interfere(self.inside)
        finally:
            self.interfering = False

    def _replace(self, slot: int) -> None:
        """A broker is no more: another one comes in its place, to which its workers connect again."""
        former, new = self.brokers[slot], self._new_broker(slot)
        self.brokers[slot] = new
        for hand in self._hands_of(former):
            hand.open = False
        for seat, worker in enumerate(self.workers):
            if worker and worker.broker is former:
                self.seat(seat, new, worker)
        come_to_rest()

    def _stop(self, slot: int) -> None:
        broker = self.brokers[slot]
        for hand in self._hands_of(broker):
            hand.open = False
        broker.release_all()
        self.stopping()
        broker.end()
        self._replace(slot)

    def _bury_the_dead(self) -> None:
        for slot, broker in enumerate(self.brokers):
            if broker.line.dead:
                self._replace(slot)

    def _hands_of(self, broker: SmallBroker) -> list[Any]:
        return [hand for hand in self.open if hand.open and hand.broker is broker]

    def _live_owners(self) -> set[str]:
        return {each["_id"] for each in self.documents["owners"].find({"state": "live"}, {"_id": 1})}

    # ---------------------------------------------------------------------- time

    # ---------------------------------------------------------------------- time

    def _begin(self) -> None:
        self.sound = False
        self.time.passes(0.002)

    def _pass(self, seconds: float, silent: int | None = None) -> None:
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
        """It is about to tick."""
        for hand in self._hands_of(broker):
            if hand.until <= self.time.value:
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

    def end_all(self) -> None:
        """Whoever still waits, ends."""
        for line in self.lines:
            line.dead = True
        self.time.passes(10 * VISIBILITY)

    def _expect(self, truth: object, complaint: str) -> None:
        """Noted, since some of those who call this have every error shielded or repeated."""
        if not truth:
            self.complaints.append(complaint)


class _Complaints(logging.Handler):
    """An error that the broker shields from others is still an error."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__()
        self.complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.complaints.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def surrounded(
    machine: type[Fate], documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What this machine needs to run; errors that a broker shields from others are complaints, too."""
    complaints: list[str] = []
    listener = _Complaints(complaints)
    machine.around = Surroundings(documents, complaints, monkeypatch)
    logging.getLogger("broker").addHandler(listener)
    yield
    logging.getLogger("broker").removeHandler(listener)
    del machine.around


def run_alone(machine: type[Fate], step: Callable[[Any], None]) -> None:
    """One rule, or some, for two brokers at work; then everything is healed, and must come to its end."""
    model: Any = machine()
    try:
        model.everybody_is_at_work()
        model.holds()
        step(model)
        model.holds()
    finally:
        model.teardown()


def check(machine: type[Fate], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=examples < 200,  # the short run is the same each time
            suppress_health_check=list(HealthCheck),
        ),
    )
