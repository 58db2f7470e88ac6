"""All queues of a broker in memory, its schedules, and its clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from sluicemq.protocol.errors import NotFoundError
from sluicemq.testing.queue import MemoryQueue
from sluicemq.testing.schedules import ScheduleTable, made
from sluicemq_broker.config import Config, Layer, QueueSettings, stored_value, with_stored
from sluicemq_broker.job import Job
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import check_name
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import ServerClock

#: Settings of all queues: chance takes no part in the waits of a test.
_DEFAULTS: Final = replace(Config.default().queue("default"), backoff_jitter=0.0)
#: Settings of queues that need other brokers, or MongoDB.
_NO_EFFECT: Final = {
    *("fair", "weights", "max_running", "rate", "burst", "on_dead", "max_dead", "max_losses", "overflow"),
    *("tenant_max_running", "tenant_rate", "tenant_burst", "max_ready", "max_bytes"),
}


class TestClock(ServerClock):
    """A clock that stands still until it is set."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return self._now

    def go_to(self, now: float) -> None:
        """Set the time."""
        self._now = now


class MemoryQueues:
    """The queues by name. Nothing here is for several threads at one time: the broker has a lock."""

    def __init__(self, now: float | None = None) -> None:
        self.clock = TestClock(float(int(time.time())) if now is None else now)
        self.known: dict[str, MemoryQueue] = {}
        self.max_job_bytes = Config.default().broker.max_job_bytes
        self.maker = JobMaker(self.clock, self.max_job_bytes)
        self.created: list[Any] = []
        """Called with each queue that is made."""
        self._last_seq = 0
        self._set: dict[str, dict[str, str]] = {}
        self.table = ScheduleTable()
        self.schedules = made(self, self.table)

    def next_seq(self) -> int:
        """Return the number of the next job: about the microsecond in which it is accepted."""
        self._last_seq = max(self._last_seq + 1, int(self.clock.now() * 1e6))
        return self._last_seq

    def get(self, name: str) -> MemoryQueue:
        """Return a queue; raises NotFoundError."""
        found = self.known.get(check_name(name))
        if found is None:
            raise NotFoundError(f"there is no queue {name!r}")
        return found

    def for_push(self, name: str) -> MemoryQueue:
        """Return a queue, which is made if it is not there."""
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = MemoryQueue(check_name(name), self, self.settings_of(name))
            for listener in list(self.created):
                listener(found)
        return found

    def delete(self, queue: MemoryQueue) -> None:
        """Forget a queue."""
        del self.known[queue.name]

    def make(self, queue: MemoryQueue, payload: bytes, headers: Mapping[str, Any], job_id: str | None) -> Job:
        """Make a job of a queue; raises what is wrong with it."""
        return self.maker.make(ANYBODY, queue.settings, payload, headers, job_id)

    def settings_of(self, name: str) -> QueueSettings:
        """Return the settings of a queue, made or not."""
        of_all, own = (Layer("", self._set.get(layer, {})) for layer in ("*", name))
        return with_stored(_DEFAULTS, of_all, own)

    def set_settings(self, name: str, settings: Mapping[str, Any]) -> None:
        """Set settings of a queue, or of all with ``*``; raises ValueError for a wrong one."""
        if unknown := settings.keys() & _NO_EFFECT:
            raise ValueError(f"a broker in memory does not keep to {min(unknown)}: test with a real one")
        stored = {key: stored_value(key, value) for key, value in settings.items()}
        self._set.setdefault(name, {}).update(stored)
        for queue in self.known.values():
            queue.reconfigure(self.settings_of(queue.name))

    def advance(self, seconds: float) -> None:
        """Let time pass, from one moment at which something happens to the next."""
        until = self.clock.now() + seconds
        while (moment := self._next_moment()) < until:
            self._do_at(moment)
        self._do_at(until)

    def _next_moment(self) -> float:
        """Return the next one ahead: a run of a schedule stays due while its queue is paused."""
        now = self.clock.now()
        moments = [*self.table.times, *[moment for queue in self.known.values() for moment in queue.times]]
        return min((moment for moment in moments if moment > now), default=inf)

    def _do_at(self, moment: float) -> None:
        self.clock.go_to(moment)
        self.schedules.schedules.tick()
        for queue in list(self.known.values()):
            queue.pass_time()
