"""Retention of dead letters: how long, and how many, each queue keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.attempts import attempt_each
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import oldest_deaths

#: Seconds for which a dead letter stays at least that moves on into another queue: it may have to wait for
#: that, as for a waiter at another broker, or for MongoDB.
MOVING: Final = 24 * 3600.0


class DeadBounds(NamedTuple):
    """Bounds of a queue's dead letters now.

    ``until``: those that died before then are too old. ``most``: how many are kept.
    """

    until: float
    most: int


class Used(NamedTuple):
    """Dead letters of a queue: how many, since when the oldest is dead, and the used shares of both bounds.

    ``time`` and ``number``: 1.0 when the oldest ones are about to be removed.
    """

    queue: str
    dead: int
    oldest: float | None
    time: float
    number: float


class DeadRetention:
    """The dead letters of all queues, as the last sweep has found them.

    ``dead(queue)``: about how many it has; None: not known. ``retire(queue, bounds)``: remove those beyond
    its bounds, in the background.
    """

    def __init__(
        self,
        queues: Queues,
        now: Callable[[], float],
        dead: Callable[[str], int | None],
        retire: Callable[[str, DeadBounds], None],
    ) -> None:
        self._queues = queues
        self._now = now
        self._dead = dead
        self._retire = retire
        self._oldest: dict[str, float] = {}

    def sweep(self) -> None:
        """Look at all queues with dead letters, and have those beyond their bounds removed.

        Called every lease. Raises Unavailable.
        """
        some = [queue for queue in self._queues if self._dead(queue.name)]
        oldest: dict[str, float] = {}
        for database, names in self._queues.by_database(some).items():
            oldest |= oldest_deaths(database, names)
        self._oldest = oldest
        attempt_each(some, self._enforce, self._failed)

    def _enforce(self, queue: Queue) -> None:
        bounds, died = self.bounds(queue), self._oldest.get(queue.name)
        if (died is not None and died < bounds.until) or (self._dead(queue.name) or 0) > bounds.most:
            self._retire(queue.name, bounds)

    def _failed(self, queue: Queue, error: Exception) -> None:
        text = f"old dead letters of queue {queue.name} stay: {type(error).__name__}: {error}"
        self._queues.context.counters.notice(Count.UNSWEPT, text)

    def bounds(self, queue: Queue) -> DeadBounds:
        """Return the bounds of a queue's dead letters now."""
        return DeadBounds(self._now() - _kept(queue), queue.settings.max_dead)

    def used(self) -> Iterator[Used]:
        """Yield how far each queue with dead letters has used its bounds."""
        for queue in self._queues:
            if dead := self._dead(queue.name):
                oldest = self._oldest.get(queue.name)
                age = 0.0 if oldest is None else self._now() - oldest
                number = dead / queue.settings.max_dead
                yield Used(queue.name, dead, oldest, age / (_kept(queue) or 1.0), number)


def _kept(queue: Queue) -> float:
    """Return the seconds for which a queue keeps a dead letter."""
    settings = queue.settings
    moves = settings.on_dead not in (None, queue.name)
    return max(settings.dead_retention, MOVING) if moves else settings.dead_retention
