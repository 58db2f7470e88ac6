"""A broker without doors and without greenlets of its own: each duty is done when a test says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import gevent

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.admin import DeadLetterAdmin, JobAdmin
from sluicemq_broker.bus import BusEvent
from sluicemq_broker.config import Config
from sluicemq_broker.context import Context, Owners, Retry
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import Census, DeadRetention, OnDead, Queues, Schedules, Sweeper, Tasks
from sluicemq_broker.runtime import Counters
from sluicemq_broker.store import LeaseStore, ScheduleStore, ServerClock
from support.faulty_mongo import FaultyDatabase, Line
from support.jobs import NOW
from support.virtual_time import VirtualTime, come_to_rest

LEASE: Final = 15.0
BEAT: Final = LEASE / 5
MAX_LOSSES: Final = 3
#: What a broker does from time to time.
DUTIES: Final = ("beat", "tick", "sweep", "audit", "round")
#: A queue's ``max_running`` and so on, where it has some.
NO_LIMITS: Final[Mapping[str, Any]] = {}
#: How long a broker that stops waits for MongoDB.
_LAST_WRITES: Final = 2.0


class VirtualClock(ServerClock):
    """The server's clock: :data:`NOW` when the test begins, one for all brokers."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._began = time.value

    def now(self) -> float:
        return int((NOW + self._time.value - self._began) * 1000) / 1000


class _Over:
    """Event that a broker's retries wait on; a broker that was killed waits for nothing."""

    def __init__(self, time: VirtualTime, line: Line) -> None:
        self._time = time
        self._line = line
        self._set = False

    def is_set(self) -> bool:
        return self._set or self._line.dead

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        if not self.is_set():
            self._time.sleep(seconds)
        return self.is_set()


class SmallBroker:
    """The parts between the doors and MongoDB, as ``Server`` puts them together, with one queue."""

    def __init__(
        self,
        name: str,
        documents: Any,
        time: VirtualTime,
        clock: VirtualClock,
        line: Line,
        new_id: Callable[[], str],
        limits: Mapping[str, Any] = NO_LIMITS,
        tell: Callable[[BusEvent], None] = lambda _event: None,
    ) -> None:
        """``tell``: hears what it tells other brokers."""
        self.time = time
        self.line = line
        self.looked_at = -math.inf
        """When it looked last for deliveries whose time is over."""
        self._at_work: set[Callable[[], None]] = set()
        self.retry = Retry()
        self.retry._over = _Over(time, line)
        self.counters = Counters(time.now)
        database: Any = FaultyDatabase(documents, line)
        self.owners = Owners(LeaseStore(database), clock, name, LEASE, timer=time, new_id=new_id)
        self.owners.on_lost(self._drop)
        context = Context(self.owners, clock, self.counters, self.retry, timer=time)
        channel: Any = SimpleNamespace(announce=tell)
        maker = JobMaker(clock, 1 << 20)
        self.queues = Queues(
            _config(limits), context, lambda _name: database, maker.make, lambda _name: channel
        )
        self.tasks = tasks = Tasks(self.queues, context, lambda _name: database)
        self.census = census = Census(self.queues, context)
        self.dead_retention = DeadRetention(self.queues, clock.now, census.dead, tasks.retire)
        self.sweeper = Sweeper(self.queues, context, tasks.expire, self.queues.survey)
        self.schedules = Schedules(ScheduleStore(database), self.queues, context, maker.make)
        self.on_dead = OnDead(self.queues, context)
        self.job_admin = JobAdmin(self.queues, census, context)
        self.dead_letters = DeadLetterAdmin(self.queues, census, tasks, context)
        self.queue = self.queues.open("mail")
        self.owners.use()
        self.sweeper.sweep()

    @property
    def busy(self) -> bool:
        """Return whether anything is on its way to MongoDB; nothing is any more once it was killed."""
        return any(queue.busy for queue in self.queues) and not self.line.dead

    def beat(self) -> None:
        """Begin as ``Server`` does, without measuring the clock."""
        self._do(self._beat)

    def tick(self) -> None:
        self._do(self._tick)

    def sweep(self) -> None:
        self._do(self.sweeper.sweep)

    def audit(self) -> None:
        self._do(self.sweeper.audit)

    def round(self) -> None:
        """Clean up after brokers that died; run recurring jobs."""
        self._do(self._round)

    def release_all(self) -> None:
        """The first half of a stop, for which MongoDB has a moment."""
        for queue in self.queues:
            queue.stop_granting(0.0)
        come_to_rest()
        for queue in self.queues:
            queue.intake.refuse_waiting()
            queue.release_all()
        self.time.passes(_LAST_WRITES)

    def end(self) -> None:
        """The second half."""
        self.retry.give_up()
        self.time.passes(_LAST_WRITES)
        with suppress(SluiceError):
            self.queues.leave()
        with suppress(SluiceError):
            self.owners.end()

    def interfere(self, duty: str) -> None:
        """Do a duty right now, in the middle of another broker's work."""
        work = (self._beat, self._tick, self.sweeper.sweep, self.sweeper.audit, self._round)
        with suppress(UnavailableError):
            work[DUTIES.index(duty)]()

    def _drop(self, owner: str) -> None:
        self.queues.drop_owner(owner)

    def _beat(self) -> None:
        sure = self.owners.sure
        self.owners.beat()
        if self.owners.sure and not sure:
            for queue in self.queues:
                queue.dispatch()

    def _tick(self) -> None:
        self.looked_at = self.time.value
        for queue in self.queues:
            queue.tick()

    def _round(self) -> None:
        self.on_dead.tick()
        self.on_dead.round(LEASE)
        self.schedules.tick()

    def _do(self, duty: Callable[[], None]) -> None:
        """Each duty in a greenlet of its own, as the server has them: one keeps no other waiting."""
        if duty not in self._at_work:
            self._at_work.add(duty)
            gevent.spawn(self._run, duty)
        come_to_rest()

    def _run(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except UnavailableError:
            pass
        finally:
            self._at_work.discard(duty)


def _config(limits: Mapping[str, Any]) -> Config:
    default = Config.default()
    return replace(default, other_queues=replace(default.other_queues, max_losses=MAX_LOSSES, **limits))
