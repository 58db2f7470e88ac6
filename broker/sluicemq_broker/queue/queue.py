"""One queue at this broker, whole: what is pushed, who works, what is settled, who asks.

A job's way: ``intake`` writes it, ``dispatch`` finds it a worker, ``settle`` writes the verdict;
``store`` is where each of them meets MongoDB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluicemq import wire
from sluicemq.errors import Paused, SluiceError
from sluicemq_broker.config.settings import QueueSettings
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.answers import Answers
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.intake import Intake, Push
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.owners import Owners
from sluicemq_broker.queue.patience import Patience
from sluicemq_broker.queue.settle import Settle
from sluicemq_broker.runtime.batcher import Batcher
from sluicemq_broker.runtime.counters import Counters, QueueCounters
from sluicemq_broker.runtime.counts import Count
from sluicemq_broker.store.connection import Documents, ServerClock
from sluicemq_broker.store.documents import Usual
from sluicemq_broker.store.inspect import collection
from sluicemq_broker.store.queue_store import QueueStore
from sluicemq_devices.hub.flow import Watermark

log = logging.getLogger("broker.queue")

#: Messages that could not be read, kept among the dead letters of one queue for each run of the broker.
UNREADABLE_KEPT = 1000
# In one statement: each may have 128 KiB, and the driver writes them all down in one turn of the hub.
_BURIED_AT_ONCE = 20


class Letter(NamedTuple):
    """A message that could not be read, on its way to the dead letters; its size counts at that mark."""

    unreadable: dict[str, Any]
    mark: Watermark
    size: int


#: Ticks of a queue that has come to rest: the pace of its workers is forgotten within them.
_LAST_TICKS = 3


@dataclass(frozen=True, slots=True)
class House:
    """What all queues of a broker share."""

    database: Callable[[str | None], Documents]
    owners: Owners
    clock: ServerClock
    patience: Patience
    counters: Counters
    memory: Memory = field(default_factory=Memory)


class Queue:
    """One queue; its parts are public, each with one subject."""

    def __init__(self, name: str, settings: QueueSettings, house: House) -> None:
        self.name = name
        self.settings = settings
        usual = Usual._make(getattr(settings, name) for name in Usual._fields)
        self.store = QueueStore(house.database(settings.database), collection(name), usual)
        self.counters = QueueCounters(house.counters, time.monotonic())
        self.store.notice = self.counters.notice
        self.paused: frozenset[str] = frozenset()
        self.gates: list[Callable[[], None]] = []  # called when intake is paused or resumed
        shared = (house.clock, house.patience, self.counters)
        self.dispatch = Dispatch(self.store, house.owners, *shared, house.memory)
        self.answers = Answers(self.store, house.patience, self.dispatch.held)
        self.dispatch.supply.on_dead = self.answers.check
        self.intake = Intake(self.store, self.dispatch, house.owners, *shared, house.memory)
        self.settle = Settle(self.store, self.dispatch, self.answers, *shared, settings.retries, house.memory)
        self._house = house
        self._unreadable = 0
        self._buried: Batcher[Letter] = Batcher(self._bury, size=_BURIED_AT_ONCE)
        self._ticks_at_rest = 0

    @property
    def busy(self) -> bool:
        """Whether anything is on its way to MongoDB."""
        return self.intake.busy or self.settle.busy or self._buried.busy

    def push(self, push: Push) -> None:
        """Take jobs in."""
        self.intake.push(push)

    def bury(self, unreadable: dict[str, Any], mark: Watermark, size: int) -> None:
        """Keep a message that never became a job among the dead letters; past a bound only count it.

        Until it is written its ``size`` counts at the ``mark`` of the door through which it came.
        """
        self._unreadable += 1
        if self._unreadable <= UNREADABLE_KEPT:
            mark.take(1, size)
            self._buried.add(Letter(unreadable, mark, size))

    def admit(self) -> None:
        """Raises :class:`Paused` if jobs are not taken in."""
        if wire.INTAKE in self.paused:
            raise Paused(
                f"queue {self.name!r} takes no jobs: its intake is paused; "
                f"resume it with: sluicemq resume {self.name} --intake"
            )

    def pause(self, paused: frozenset[str]) -> None:
        """Pause these, of ``delivery`` and ``intake``, and resume the others; again is harmless.

        Jobs that are at workers go on and are settled; pushes that were taken in are stored.
        """
        changed, self.paused = self.paused ^ paused, paused
        if wire.DELIVERY in changed:
            self.dispatch.pause(paused=wire.DELIVERY in paused)
        if wire.INTAKE in changed:
            for follow in self.gates:
                follow()

    @property
    def in_use(self) -> bool:
        """Whether anybody works on it here, waits for its jobs, or has some, or anything is on its way."""
        return self._has_work or self.busy

    @property
    def _has_work(self) -> bool:
        dispatch = self.dispatch
        return bool(dispatch.workers or dispatch.held or dispatch.deliveries or len(self.answers))

    def tick(self) -> None:
        """Every second or so: time-outs, askers, and jobs of other brokers; one out of use costs nothing."""
        self.counters.tick(time.monotonic())
        self._ticks_at_rest = 0 if self._has_work else self._ticks_at_rest + 1
        if self._ticks_at_rest > _LAST_TICKS:
            return
        self.settle.time_out()
        self.answers.look_elsewhere(self._house.clock.now(), alone=not self._house.owners.others)
        self.dispatch.tick()

    def expire(self) -> None:
        """End what was not taken in time, and tell those who wait for it."""
        while True:
            expired = self.store.expire(self._house.clock.now())
            if not expired:
                return
            self.counters.add(Count.EXPIRED, len(expired))
            self.answers.expired(expired)

    def give_back(self) -> None:
        """Give back all that is held, staged or at workers, without charging an attempt: the broker stops."""
        dispatch = self.dispatch
        at_workers: list[Job] = [each.job for each in dispatch.deliveries.values()]
        dispatch.deliveries.clear()
        self.settle.release([*dispatch.withdraw(), *at_workers])

    def forget_all(self) -> None:
        """The queue was removed from MongoDB: tell those who wait for its jobs.

        What is held may have been pushed since. So what is staged goes back, where it is there, and what
        is at workers ends with their verdicts.
        """
        self.settle.release(self.dispatch.withdraw())
        self.answers.removed()

    def _bury(self, letters: list[Letter]) -> None:
        def statement() -> None:
            self.store.prepare()
            self.store.bury([each.unreadable for each in letters], self._house.clock.now())

        try:
            self._house.patience.insist(statement)
        except SluiceError:
            log.exception("%d unreadable messages are not kept", len(letters))
        finally:
            for each in letters:
                each.mark.give(1, each.size)
