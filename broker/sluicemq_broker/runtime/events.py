"""Events of jobs (pushed, delivered, ...) for clients that watch; without a watcher none are recorded.

Each batch of jobs checks once whether anybody watches (:attr:`Events.wanted`), so events cost a job nothing.
Events lie in a ring. A slow reader misses the oldest, and gets their number; jobs and other readers never
wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from sluicemq_broker.runtime.timer import Timer

#: Events that are held for slow readers.
HELD: Final = 10_000
#: Seconds after the last read for which events are recorded: a watcher reads again within them.
LISTENING: Final = 10.0


class Events:
    """The events of one ``queue``; all queues share one ring."""

    def __init__(self, timer: Timer | None = None, *, ring: _Ring | None = None, queue: str = "") -> None:
        self._ring = ring or _Ring(timer or Timer())
        self._queue = queue

    def of(self, queue: str) -> Events:
        """Return the events of this queue, in this ring."""
        return Events(ring=self._ring, queue=queue)

    @property
    def wanted(self) -> bool:
        """True if anybody watches; False: nothing need be emitted."""
        return self._ring.wanted

    def emit(self, event: str, at: float, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Record an event of jobs, each ``{job, attempt?, worker?, reason?}``; ``at``: server's time."""
        if self._ring.wanted:
            self._ring.add({"at": at, "event": event, "queue": self._queue, **job} for job in jobs)

    def read(
        self,
        after: int | None,
        queue: str | None,
        most: int,
        is_seen: Callable[[str], bool] = lambda _queue: True,
    ) -> dict[str, Any]:
        """Return ``{events, after, missed}``: the events behind number ``after``; None: from now on.

        The next read gives the returned ``after``. ``missed``: events that were dropped. ``is_seen``: the
        queues whose events this reader may see; others have no number for it. ``queue``: only those of one.
        """
        return self._ring.read(after, queue, most, is_seen)

    def tick(self) -> None:
        """Stop recording when nobody has read for :data:`LISTENING` seconds; called every second or so."""
        self._ring.tick()


class _Ring:
    """The latest events of all queues. A reader numbers those that it may see from 1 on."""

    def __init__(self, timer: Timer) -> None:
        self.wanted = False
        self._timer = timer
        self._until = 0.0
        self._held: deque[dict[str, Any]] = deque(maxlen=HELD)
        self._counts: dict[str, int] = {}  # of all events of a queue

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._held.append(event)
            self._counts[event["queue"]] = self._counts.get(event["queue"], 0) + 1

    def read(
        self, after: int | None, queue: str | None, most: int, is_seen: Callable[[str], bool]
    ) -> dict[str, Any]:
        self.wanted = True
        self._until = self._timer.now() + LISTENING
        seen = {name for name in self._counts if is_seen(name)}
        last = sum(self._counts[name] for name in seen)
        if after is None or after > last:  # greater: the number is of before a restart of the broker
            return {"events": [], "after": last, "missed": 0}
        behind = list(
            islice((event for event in reversed(self._held) if event["queue"] in seen), last - after)
        )
        begin = last - len(behind)
        found = behind[::-1][:most]
        shown = [
            _without_others(event, is_seen) for event in found if queue is None or event["queue"] == queue
        ]
        return {"events": shown, "after": begin + len(found), "missed": begin - after}

    def tick(self) -> None:
        if self.wanted and self._timer.now() >= self._until:
            self.wanted = False
            self._held.clear()


def _without_others(event: dict[str, Any], is_seen: Callable[[str], bool]) -> dict[str, Any]:
    """Return an event without the name of a queue from which its jobs came, if that is not seen."""
    if "from" not in event or is_seen(event["from"]):
        return event
    return {key: value for key, value in event.items() if key != "from"}
