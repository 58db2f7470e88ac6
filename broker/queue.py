"""One queue at this broker, whole: what is pushed, who works, what is settled, who asks.

A job's way: ``intake`` writes it, ``dispatch`` finds it a worker, ``settle`` writes the verdict;
``store`` is where each of them meets MongoDB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.answers import Answers
from broker.batcher import Batcher
from broker.config import QueueSettings
from broker.counters import Counters, QueueCounters
from broker.dispatch import Dispatch
from broker.intake import Intake, Push
from broker.job import Job
from broker.mongo import Documents, ServerClock
from broker.owners import Owners
from broker.patience import Patience
from broker.settle import Settle
from broker.store import QueueStore
from broker.store_documents import Usual
from broker.store_inspect import collection
from sluicemq import wire
from sluicemq.errors import Paused, SluiceError

log = logging.getLogger("broker.queue")

#: Messages that could not be read, kept among the dead letters of one queue for each run of the broker.
UNREADABLE_KEPT = 1000


@dataclass(frozen=True, slots=True)
class House:
    """What all queues of a broker share."""

    database: Callable[[str | None], Documents]
    owners: Owners
    clock: ServerClock
    patience: Patience
    counters: Counters


class Queue:
    """One queue; its parts are public, each with one subject."""

    def __init__(self, name: str, settings: QueueSettings, house: House) -> None:
        self.name = name
        self.settings = settings
        usual = Usual(
            settings.max_attempts,
            settings.visibility_timeout,
            settings.keep_done,
            settings.dead_retention,
            settings.on_expiry,
        )
        self.store = QueueStore(house.database(settings.database), collection(name), usual)
        self.counters = QueueCounters(house.counters, time.monotonic())
        self.paused: frozenset[str] = frozenset()
        self.gates: list[Callable[[], None]] = []  # called when intake is paused or resumed
        shared = (house.clock, house.patience, self.counters)
        self.dispatch = Dispatch(self.store, house.owners, *shared)
        self.answers = Answers(self.store, house.patience, self.dispatch.held)
        self.intake = Intake(self.store, self.dispatch, house.owners, *shared)
        self.settle = Settle(self.store, self.dispatch, self.answers, *shared, settings.retries)
        self._house = house
        self._unreadable = 0
        self._buried: Batcher[dict[str, Any]] = Batcher(self._bury, size=100)

    @property
    def busy(self) -> bool:
        """Whether anything is on its way to MongoDB."""
        return self.intake.busy or self.settle.busy or self._buried.busy

    def push(self, push: Push) -> None:
        """Take jobs in."""
        self.intake.push(push)

    def bury(self, unreadable: dict[str, Any]) -> None:
        """Keep a message that never became a job among the dead letters; past a bound only count it."""
        self._unreadable += 1
        if self._unreadable <= UNREADABLE_KEPT:
            self._buried.add(unreadable)

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

    def tick(self) -> None:
        """Every second or so: time-outs, askers, and jobs of other brokers."""
        self.counters.tick(time.monotonic())
        self.settle.time_out()
        self.answers.look_up_elsewhere()
        self.dispatch.tick()

    def expire(self) -> None:
        """End what was not taken in time, and tell those who wait for it."""
        while True:
            expired = self.store.expire(self._house.clock.now())
            if not expired:
                return
            self.counters.add("expired", len(expired))
            self.answers.expired(expired)

    def give_back(self) -> None:
        """Give back all that is held, staged or at workers, without charging an attempt: the broker stops."""
        dispatch = self.dispatch
        at_workers: list[Job] = [each.job for each in dispatch.deliveries.values()]
        dispatch.deliveries.clear()
        self.settle.release([*dispatch.withdraw(), *at_workers])

    def forget_all(self) -> None:
        """The queue was removed from MongoDB: drop what is staged, and tell those who wait for its jobs."""
        self.dispatch.forget([*self.dispatch.withdraw(), *self.dispatch.held.values()])
        self.answers.removed()

    def _bury(self, unreadable: list[dict[str, Any]]) -> None:
        def statement() -> None:
            self.store.prepare()
            self.store.bury(unreadable, self._house.clock.now())

        try:
            self._house.patience.insist(statement)
        except SluiceError:
            log.exception("%d unreadable messages are not kept", len(unreadable))
