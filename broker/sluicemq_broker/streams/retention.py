"""Retention of a stream by age, number and bytes: messages over a bound are hidden at once, removed later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sluicemq_broker.config import StreamSettings
from sluicemq_broker.store import Head, StreamStore


class Retention:
    """The retention of one stream at this broker; several brokers may run it at one time.

    ``kept_from(number)`` is called with the first number that is kept. ``guard``: seconds; see
    :mod:`sluicemq_broker.store.streams.stream_store`.
    """

    def __init__(
        self, settings: StreamSettings, store: StreamStore, guard: float, kept_from: Callable[[int], None]
    ) -> None:
        self._settings = settings
        self._store = store
        self._guard = guard
        self._kept_from = kept_from
        self._seen: deque[tuple[float, int]] = deque()  # when the tail was seen where, oldest first

    def sweep(self, now: float, passed: float, unread: Callable[[], int | None]) -> int:
        """Raise the first number that is kept, and remove older segments; returns how many.

        ``now``: the server's time. ``passed``: monotonic seconds, as the writer's guard uses them.
        ``unread()``: the oldest number that a subscription has not read, or None; it is kept, up to
        ``max_unread``. After a crash in between the next sweep goes on.
        """
        tail, head = self._store.tail().next, self._store.head()
        first = self._first(now, tail)
        waiting = unread() if first > head.first else None
        if waiting is not None:
            first = max(min(first, waiting), self._hard_first(tail))
        if first > head.first:
            self._store.raise_first(first)
            head = Head(first, head.removed)
        self._kept_from(head.first)
        return self._remove(tail, passed) if head.first > head.removed else self._note(tail, passed)

    def _first(self, now: float, tail: int) -> int:
        """Return the oldest number within all bounds."""
        settings = self._settings
        firsts = [1]
        if settings.max_messages is not None:
            firsts.append(tail - settings.max_messages)
        if settings.max_bytes is not None:
            firsts.append(self._store.first_within(settings.max_bytes))
        if settings.max_age is not None:
            firsts.append(self._store.since(now - settings.max_age))
        return max(firsts)

    def _hard_first(self, tail: int) -> int:
        """Return the oldest number that is kept for subscriptions that have not read it."""
        most = self._settings.max_unread
        return 1 if most is None else max(1, tail - most)

    def _note(self, tail: int, passed: float) -> int:
        """Remember the tail; remove nothing."""
        if not self._seen or passed - self._seen[-1][0] >= self._guard / 4:
            self._seen.append((passed, tail))
        while len(self._seen) > 1 and passed - self._seen[1][0] >= 2 * self._guard:
            self._seen.popleft()
        return 0

    def _remove(self, tail: int, passed: float) -> int:
        """Remove segments that were there long enough ago: no writer takes their place for the tail now."""
        self._note(tail, passed)
        since, below = self._seen[0]
        if passed - since < 2 * self._guard:
            return 0
        removed = 0
        while count := self._store.remove(below):
            removed += count
        return removed
