"""What people ask and order: one method per administrative verb of SMQ/1. Each may wait for MongoDB."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from broker import __version__
from broker.counters import Counters
from broker.mongo import ServerClock
from broker.queue import House, Queue
from broker.queues import Queues
from broker.store_inspect import SHOWN_STATES, Inspector
from sluicemq.errors import BadFrames, BadQueue

_MOST_PEEKED: Final = 1000
_PEEKED_BYTES: Final = 8 * 1024 * 1024


class Admin:
    """The administrative verbs."""

    def __init__(self, queues: Queues, house: House) -> None:
        self._queues = queues
        self._house = house
        self._clock: ServerClock = house.clock
        self._counters: Counters = house.counters
        self._started = time.monotonic()

    def queues(self) -> list[dict[str, Any]]:
        """All queues with their counts."""
        return [self._summary(queue) for queue in sorted(self._queues, key=lambda queue: queue.name)]

    def stats(self) -> dict[str, Any]:
        """The broker, what it has counted since its start, and all queues."""
        broker = {
            "version": __version__,
            "pid": os.getpid(),
            "uptime": round(time.monotonic() - self._started, 3),
            "owner": self._house.owners.current,
            "brokers": 1 + self._house.owners.others,
        }
        return {
            "broker": broker,
            "counters": dict(sorted(self._counters.values.items())),
            "queues": self.queues(),
        }

    def peek(self, name: str, state: str, limit: int) -> list[dict[str, Any]]:
        """The first jobs of a state, without taking them."""
        queue = self._queues.get(name)
        _check_state(state, SHOWN_STATES)
        if not 1 <= limit <= _MOST_PEEKED:
            raise BadFrames(f"limit {limit} is not from 1 to {_MOST_PEEKED}")
        return self._inspector(queue).peek(name, state, limit, _PEEKED_BYTES, self._clock.now())

    def purge(self, name: str, state: str) -> int:
        """Remove all jobs of a state."""
        queue = self._queues.get(name)
        _check_state(state, [each for each in SHOWN_STATES if each != "reserved"])
        removed = self._inspector(queue).purge(name, state, self._clock.now())
        self._counters.add("purged", removed)
        return removed

    def delete(self, name: str) -> int:
        """Remove a queue and all its jobs; refused while workers are connected to it."""
        queue = self._queues.get(name)
        workers = len(queue.dispatch.workers)
        if workers:
            raise BadQueue(f"queue {name!r} has {workers} workers: stop them first")
        removed = self._inspector(queue).drop(name)
        self._queues.forget(name)
        return removed

    def cancel(self, name: str, job_id: str) -> None:
        """Remove one job that waits."""
        self._inspector(self._queues.get(name)).cancel(name, job_id)
        self._counters.add("cancelled")

    def _summary(self, queue: Queue) -> dict[str, Any]:
        counts = self._inspector(queue).counts(queue.name, self._clock.now())
        return self._queues.summary(queue, counts)

    def _inspector(self, queue: Queue) -> Inspector:
        queue.store.prepare()
        return Inspector(self._house.database(queue.settings.database))


def _check_state(state: str, allowed: tuple[str, ...] | list[str]) -> None:
    if state not in allowed:
        raise BadFrames(f"state {state!r} is not one of {', '.join(allowed)}")
