"""What happens to jobs, told to whoever listens at this moment; while nobody does, nothing is told.

Each batch that something happens to looks once whether somebody listens (:attr:`Events.wanted`), so that a
job costs nothing. What is told lies in a ring: whoever reads too slowly has missed the oldest, and is told
how many that were; neither the jobs nor other readers wait for anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from sluicemq_broker.runtime.timer import Timer

#: Events that are held for slow readers.
HELD: Final = 10_000
#: Seconds after the last question for which events are told still: whoever listens asks again within them.
LISTENING: Final = 10.0


class Events:
    """Where it is told what happens to the jobs of one ``queue``; all queues have one ring."""

    def __init__(self, timer: Timer | None = None, *, ring: _Ring | None = None, queue: str = "") -> None:
        self._ring = ring or _Ring(timer or Timer())
        self._queue = queue

    def of(self, queue: str) -> Events:
        """The same for the jobs of this queue."""
        return Events(ring=self._ring, queue=queue)

    @property
    def wanted(self) -> bool:
        """True if anybody listens: else nothing need be told."""
        return self._ring.wanted

    def emit(self, event: str, at: float, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Say what has happened to these, each ``{job, attempt?, worker?, reason?}``; server's time."""
        if self._ring.wanted:
            self._ring.add({"at": at, "event": event, "queue": self._queue, **each} for each in jobs)

    def read(self, after: int | None, queue: str | None, most: int) -> dict[str, Any]:
        """``{events, after, missed}``: what has happened behind number ``after``; ask next with that one.

        None: what happens from now on. ``missed``: how many were not held any more, of all queues together.
        """
        return self._ring.read(after, queue, most)

    def tick(self) -> None:
        """Every second or so: tell no more when nobody has asked for some time."""
        self._ring.tick()


class _Ring:
    """The latest events of all queues, numbered from 1 on."""

    def __init__(self, timer: Timer) -> None:
        self.wanted = False
        self._timer = timer
        self._until = 0.0
        self._held: deque[dict[str, Any]] = deque(maxlen=HELD)
        self._last = 0

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        told = list(events)
        self._held.extend(told)
        self._last += len(told)

    def read(self, after: int | None, queue: str | None, most: int) -> dict[str, Any]:
        self.wanted = True
        self._until = self._timer.now() + LISTENING
        gone = self._last - len(self._held)
        if after is None or after > self._last:  # or the broker was started anew
            return {"events": [], "after": self._last, "missed": 0}
        begin = max(after, gone)
        found = list(islice(self._held, begin - gone, begin - gone + most))
        shown = [each for each in found if queue is None or each["queue"] == queue]
        return {"events": shown, "after": begin + len(found), "missed": begin - after}

    def tick(self) -> None:
        if self.wanted and self._timer.now() >= self._until:
            self.wanted = False
            self._held.clear()
