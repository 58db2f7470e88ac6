"""The jobs of a queue as the API gives them: page by page, by id, dead letters by why and when they died."""

from __future__ import annotations

from typing import Any

from sluicemq_broker.context import Context
from sluicemq_broker.http.asked import as_cursor
from sluicemq_broker.job import State
from sluicemq_broker.queues import Queues
from sluicemq_broker.statistics import Census
from sluicemq_broker.store import DeadLetters, JobPage, Listing


class JobPages:
    """Each method waits for MongoDB; raises NotFound for a queue that is not there."""

    def __init__(self, queues: Queues, census: Census, context: Context) -> None:
        self._queues = queues
        self._census = census
        self._clock = context.clock

    def page(self, queue: str, state: str, limit: int, after: list[Any] | None) -> dict[str, Any]:
        """``{jobs, next}`` of one state."""
        return _shown(self._listing(queue).page(queue, state, limit, after, self._clock.now()))

    def find(self, queue: str, beginning: str, limit: int) -> dict[str, Any]:
        """The same of jobs whose id begins so, of whatever state."""
        return _shown(self._listing(queue).with_ids(queue, beginning, limit, self._clock.now()))

    def dead(self, queue: str, letters: DeadLetters, limit: int, after: list[Any] | None) -> dict[str, Any]:
        """The same of dead letters, the latest first."""
        now = self._clock.now()
        return _shown(self._listing(queue).ended(queue, State.DEAD, letters, limit, after, now))

    def count_dead(self, queue: str, letters: DeadLetters) -> dict[str, Any]:
        """``{count, exact}``: how many these are."""
        known = self._census.dead(queue)
        count, exact = self._listing(queue).count(queue, letters, self._clock.now(), known)
        return {"count": count, "exact": exact}

    def reasons(self, queue: str, letters: DeadLetters) -> list[dict[str, Any]]:
        """Why the latest of them died, the most frequent reasons first."""
        return self._listing(queue).reasons(queue, letters, self._clock.now())

    def _listing(self, name: str) -> Listing:
        queue = self._queues.get(name)
        queue.prepare()
        return Listing(self._queues.database_of(queue))


def _shown(page: JobPage) -> dict[str, Any]:
    return {"jobs": page.jobs, "next": as_cursor(page.next)}
