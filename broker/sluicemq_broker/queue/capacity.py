"""Whether a queue takes more jobs: ``max_ready`` and ``max_bytes``, and what a full one does to who pushes.

MongoDB counts what waits each second or so, and what happens here meanwhile is added: what this broker took
in, from the moment when it did, less what it reserved, ended or removed. So one broker alone is as exact as
that count; others may bring, between two counts, what they take in. Of a connection that can't be told, what
was read before it is held goes in still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from sluicemq.protocol.errors import QueueFull
from sluicemq_broker.config import Overflow, QueueSettings
from sluicemq_broker.runtime import Count

#: Of what a queue may hold, as much must be free before who was held goes on: one part in so many.
_PART: Final = 8
#: Seconds for which a broker keeps to what it knows, where only it pushes and works, and it never rests.
_KEEPS_TO: Final = 30.0
#: What MongoDB stores of a job beside its payload and headers, in bytes.
_BESIDE: Final = 200
#: What jobs that wait, or are reserved, come to.
_ENDED: Final = (Count.COMMITTED, Count.FORWARDED, Count.EXPIRED, Count.DEAD)


class Flow(NamedTuple):
    """What has happened at this broker so far: jobs that came in, their bytes, and jobs that ended.

    ``held``: how many of those that have not ended are reserved here; ``storing``, ``storing_size``: what
    may not be stored yet, of which nobody knows whether a count has it.
    """

    came: int = 0
    size: int = 0
    ended: int = 0
    held: int = 0
    storing: int = 0
    storing_size: int = 0

    @classmethod
    def counted(
        cls, counts: Mapping[str, int], size: int, held: int, storing: int, storing_size: int
    ) -> Flow:
        """What a queue's counters say; what is ``storing`` is none that was pushed yet."""
        ended = sum([counts[each] for each in _ENDED])
        return cls(counts[Count.PUSHED] + storing, size, ended, held, storing, storing_size)

    @property
    def waiting(self) -> int:
        """How many jobs more wait than at the broker's start."""
        return self.came - self.ended - self.held


class Counted(NamedTuple):
    """What MongoDB holds: jobs that wait; all documents, and their bytes."""

    waiting: int
    documents: int
    size: int


class Pausable(Protocol):
    """A connection whose jobs a full queue does not take."""

    def pause(self, by: object) -> None:
        """Do not read it."""

    def resume(self, by: object) -> None:
        """Read it again."""


class Capacity:
    """What one queue may hold. ``flow``: what has happened here; ``called``: the queue's name."""

    def __init__(self, called: str, settings: QueueSettings, flow: Callable[[], Flow]) -> None:
        self._called = called
        self._flow = flow
        self._counted, self._then = Counted(0, 0, 0), Flow()
        self._counts_again = -math.inf
        self._held: WeakSet[Pausable] = WeakSet()
        self._open = False
        self.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other bounds; what is in the queue stays."""
        self._max_ready, self._max_bytes = settings.max_ready, settings.max_bytes
        self._holds = settings.overflow == Overflow.HOLD
        self.bounded = self._max_ready is not None or self._max_bytes is not None
        """True if it has any."""
        self.look()

    @property
    def measured(self) -> bool:
        """True if its bytes count."""
        return self._max_bytes is not None

    def flow(self) -> Flow:
        """What has happened here so far, for :meth:`counted`."""
        return self._flow()

    def counted(self, counted: Counted, begun: Flow, at: float = 0.0, *, shared: bool = True) -> None:
        """MongoDB has counted so much, since here was what ``begun`` says; ``at``: monotonic seconds.

        What came in meanwhile may count twice, and what left may count still: never the other way round. So a
        broker that has the queue for itself keeps to what it knows while something happens, for a while.
        """
        now = self._flow()
        quiet = now == begun and not begun.storing
        if not (quiet or shared) and at < self._counts_again:
            return
        self._counts_again = at + _KEEPS_TO
        came, size = begun.came - begun.storing, begun.size - begun.storing_size
        self._counted, self._then = counted, Flow(came, size, now.ended, now.held)
        self.look()

    def recount(self) -> None:
        """An order has changed what is there: the next count holds, whatever happens meanwhile."""
        self._counts_again = -math.inf

    @property
    def outdated(self) -> bool:
        """True from :meth:`recount` on, until it is counted."""
        return self._counts_again == -math.inf

    @property
    def waiting(self) -> int:
        """About how many jobs wait, those on their way to MongoDB too."""
        return max(0, self._counted.waiting + self._flow().waiting - self._then.waiting)

    @property
    def size(self) -> int:
        """About how many bytes its documents have; what went is taken to be as large as the average."""
        now, then, counted = self._flow(), self._then, self._counted
        came = now.came - then.came
        size = counted.size + now.size - then.size + _BESIDE * came
        average = size / max(1, counted.documents + came)
        return max(0, int(size - average * (now.ended - then.ended)))

    @property
    def full(self) -> bool:
        """True if it takes no more, and does something about it."""
        return self.bounded and not self._open and self._room(self._max_ready, self._max_bytes) <= 0

    @property
    def room(self) -> float:
        """How many more jobs may come from who can be told that there is no room; infinite if they wait."""
        if not self.bounded or self._holds or self._open:
            return math.inf
        return max(0, self._room(self._max_ready, self._max_bytes))

    def refusal(self) -> QueueFull:
        """What those hear who push too much."""
        ready = f"{self.waiting} jobs wait, max_ready = {self._max_ready}"
        size = f"its jobs have {self.size} bytes, max_bytes = {self._max_bytes}"
        why = [text for text, most in ((ready, self._max_ready), (size, self._max_bytes)) if most is not None]
        return QueueFull(f"queue {self._called!r} is full ({'; '.join(why)}): push again later")

    def hold(self, who: Pausable, *, hears: bool) -> None:
        """It has pushed: if the queue is full now, read no more of it until there is room.

        ``hears``: it can be told instead, unless the queue lets everybody wait.
        """
        if self.bounded and (self._holds or not hears) and self.full:
            self._held.add(who)
            who.pause(self)

    def look(self) -> None:
        """Jobs have left, or it was counted: those who were held go on if there is room again."""
        if self._held and not self._has_not_enough_room():
            held, self._held = self._held, WeakSet()
            for each in held:
                each.resume(self)

    def open(self) -> None:
        """The broker stops: take in whatever lies in the sockets, or it would be lost."""
        self._open = True
        self.look()

    def _has_not_enough_room(self) -> bool:
        ready, size = _lower(self._max_ready), _lower(self._max_bytes)
        return self.bounded and not self._open and self._room(ready, size) <= 0

    def _room(self, ready: int | None, size: int | None) -> float:
        """How many jobs more until so many wait, or none if there are as many bytes."""
        room = math.inf if ready is None else ready - self.waiting
        return room if size is None or self.size < size else 0


def _lower(most: int | None) -> int | None:
    return None if most is None else most - max(1, most // _PART) + 1
