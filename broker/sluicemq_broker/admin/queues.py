"""Queues: their counts and workers; they are paused, resumed, purged, deleted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq_broker.admin.jobs import check_state
from sluicemq_broker.admin.shared_answer import SharedAnswer
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Census, Delete, Purge, Queues, Task, Tasks, check_name
from sluicemq_broker.store import SHOWN_STATES

#: Workers in one answer, and jobs of each: more than a person reads.
_MOST_WORKERS: Final = 1000
_MOST_OF_ONE: Final = 20


class QueueAdmin:
    """The queues of a broker."""

    def __init__(self, queues: Queues, census: Census, tasks: Tasks) -> None:
        self._queues = queues
        self._census = census
        self._tasks = tasks
        self._counts = SharedAnswer(census.all)
        self.kept = census.kept
        self.kept_in_turns = census.kept_in_turns

    def all(self) -> list[dict[str, Any]]:
        """Return all queues with their counts, with those that other brokers have made."""
        return self._counts.get()

    def one(self, name: str) -> dict[str, Any]:
        """Return one queue with its counts."""
        return self._census.one(check_name(name))

    def workers(self, name: str | None, is_seen: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the workers at this broker, or those of one queue, with the jobs of each.

        ``is_seen``: whether those of a queue belong to the answer.
        """
        queues = self._queues if name is None else [self._queues.get(name)]
        seen = (each for each in queues if each.workers and is_seen(each.name))
        return list(islice((row for each in seen for row in each.worker_list(_MOST_OF_ONE)), _MOST_WORKERS))

    def pause(self, name: str, what: str) -> list[str]:
        """Pause delivery or intake at all brokers; returns what is paused now."""
        queue = self._pausable(name, what)
        self._queues.pause(queue, what)
        return sorted(queue.paused)

    def resume(self, name: str, what: str) -> list[str]:
        """Resume delivery or intake at all brokers; returns what is still paused."""
        queue = self._pausable(name, what)
        self._queues.resume(queue, what)
        return sorted(queue.paused)

    def purge(self, name: str, state: str) -> Task:
        """Remove all jobs of a state."""
        check_state(state, [each for each in SHOWN_STATES if each != State.RESERVED])
        return self._tasks.begin(Purge.kind, name, state=state)

    def delete(self, name: str) -> Task:
        """Remove a queue and all its jobs; refused while workers are connected to it."""
        return self._tasks.begin(Delete.kind, name)

    def _pausable(self, name: str, what: str) -> Queue:
        if what not in (wire.DELIVERY, wire.INTAKE):
            raise BadFrames(f"{what!r} can't be paused, only {wire.DELIVERY} or {wire.INTAKE}")
        queue = self._queues.get(name)
        queue.prepare(again=True)  # a queue without a collection is forgotten by a restart
        return queue
