"""The bounds of a queue: ``max_ready`` and ``max_bytes``, and how a full queue slows down its producers.

MongoDB counts the waiting jobs each second or so. The broker adds what has happened here since: jobs that it
took in, less jobs that it reserved, ended or removed. So one broker alone is as exact as that count; with
several, each may exceed the bound by what the others take in between two counts. A connection that gets no
answers is held instead of refused: jobs that were read before that still go in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from weakref import WeakSet

from sluicemq.protocol.errors import PausedError, QueueFullError
from sluicemq_broker.config import Overflow, QueueSettings
from sluicemq_broker.runtime import Count
from sluicemq_devices.hub import Pausable

#: Counters of jobs that have left the queue.
_ENDED: Final = (Count.COMMITTED, Count.FORWARDED, Count.EXPIRED, Count.DEAD)


class Flow(NamedTuple):
    """Jobs that came in at this broker so far, their bytes, and jobs that ended here.

    ``held``: how many jobs are reserved here. ``storing`` and ``storing_size``: jobs that are perhaps not
    stored yet, and their bytes: a count of MongoDB may include them or not.
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
        """Make one of a queue's counters, which do not count jobs that are ``storing``."""
        ended = sum([counts[count] for count in _ENDED])
        return cls(counts[Count.PUSHED] + storing, size, ended, held, storing, storing_size)

    @property
    def waiting(self) -> int:
        """Return how many more jobs wait than at the broker's start."""
        return self.came - self.ended - self.held


class Counted(NamedTuple):
    """A count of MongoDB: jobs that wait; all documents of the queue, and their bytes."""

    waiting: int
    documents: int
    size: int


class Capacity:
    """The bounds of the queue ``name``; ``flow`` returns what has happened here."""

    def __init__(self, name: str, settings: QueueSettings, flow: Callable[[], Flow]) -> None:
        self._name = name
        self._flow = flow
        self._counted, self._then = Counted(0, 0, 0), Flow()
        self._counts_again = -math.inf
        self._held: WeakSet[Pausable] = WeakSet()
        self._open = False
        self._paused = False
        self._pause_watchers: list[Callable[[], None]] = []
        self.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other bounds; jobs that are in the queue stay."""
        self._max_ready, self._max_bytes = settings.max_ready, settings.max_bytes
        self._holds = settings.overflow == Overflow.HOLD
        self.bounded = self._max_ready is not None or self._max_bytes is not None
        """True if the queue has any bound."""
        self.resume_if_room()

    @property
    def measured(self) -> bool:
        """Return True if the queue's bytes are bounded."""
        return self._max_bytes is not None

    def flow(self) -> Flow:
        """Return what has happened here so far, for :meth:`counted`."""
        return self._flow()

    def counted(self, counted: Counted, begun: Flow, at: float = 0.0, *, shared: bool = True) -> None:
        """Take over a count of MongoDB that began when :meth:`flow` was ``begun``; ``at``: monotonic seconds.

        Jobs that came in meanwhile may count twice, and jobs that left may still count, never the other way
        round. So a broker that alone uses the queue trusts its own figures for a while, until it is at rest.
        """
        now = self._flow()
        quiet = now == begun and not begun.storing
        if not (quiet or shared) and at < self._counts_again:
            return
        # Seconds for which a broker trusts its own figures, while it alone uses the queue and is never at
        # rest.
        self._counts_again = at + 30.0
        came, size = begun.came - begun.storing, begun.size - begun.storing_size
        self._counted, self._then = counted, Flow(came, size, now.ended, now.held)
        self.resume_if_room()

    def recount(self) -> None:
        """A bulk operation has changed the queue: trust the next count, also if the queue is not at rest."""
        self._counts_again = -math.inf

    @property
    def outdated(self) -> bool:
        """Return True from :meth:`recount` until the next count."""
        return self._counts_again == -math.inf

    @property
    def waiting(self) -> int:
        """Return about how many jobs wait, with those on their way to MongoDB."""
        return max(0, self._counted.waiting + self._flow().waiting - self._then.waiting)

    @property
    def size(self) -> int:
        """Return about how many bytes the documents have, as if each that left had the average size."""
        now, then, counted = self._flow(), self._then, self._counted
        came = now.came - then.came
        # Bytes that MongoDB stores of a job beside its payload and headers.
        size = counted.size + now.size - then.size + 200 * came
        average = size / max(1, counted.documents + came)
        return max(0, int(size - average * (now.ended - then.ended)))

    @property
    def full(self) -> bool:
        """Return True if the queue takes no more jobs."""
        return self.bounded and not self._open and self._room(self._max_ready, self._max_bytes) <= 0

    @property
    def room(self) -> float:
        """Return how many jobs a producer that gets answers may push; infinite where producers are held."""
        if not self.bounded or self._holds or self._open:
            return math.inf
        return max(0, self._room(self._max_ready, self._max_bytes))

    @property
    def admits(self) -> bool:
        """Return True if jobs may come; False: scheduled runs are postponed."""
        return not self._paused and not self.full

    def admit(self, before: int = 0) -> None:
        """Raise :class:`Paused` if intake is paused, QueueFull if there is no room for one more job.

        ``before`` other jobs will be pushed before it.
        """
        if self._paused:
            raise PausedError(
                f"queue {self._name!r} takes no jobs: its intake is paused; "
                f"resume it with: sluicemq queues resume {self._name} --intake"
            )
        if self.room <= before:
            raise self.refusal()

    def watch_pauses(self, watcher: Callable[[], None]) -> None:
        """Call this whenever intake is paused or resumed."""
        self._pause_watchers.append(watcher)

    def pause_intake(self, *, paused: bool) -> None:
        """Pause intake, or resume it; a repetition is harmless."""
        if paused != self._paused:
            self._paused = paused
            for watcher in self._pause_watchers:
                watcher()

    def refusal(self) -> QueueFullError:
        """Return the error for pushes that find no room."""
        ready = f"{self.waiting} jobs wait, max_ready = {self._max_ready}"
        size = f"its jobs have {self.size} bytes, max_bytes = {self._max_bytes}"
        why = [text for text, most in ((ready, self._max_ready), (size, self._max_bytes)) if most is not None]
        return QueueFullError(f"queue {self._name!r} is full ({'; '.join(why)}): push again later")

    def pause_if_full(self, connection: Pausable, *, answered: bool) -> None:
        """Stop reading a connection that has pushed, if the queue is full now, until there is room.

        ``answered``: it gets answers, so it is refused instead, unless the queue holds all its producers.
        """
        if self.bounded and (self._holds or not answered) and self.full:
            self._held.add(connection)
            connection.pause(self)

    def resume_if_room(self) -> None:
        """Read held connections again if there is room: jobs have left, or were counted."""
        if self._held and not self._has_not_enough_room():
            held, self._held = self._held, WeakSet()
            for waiter in held:
                waiter.resume(self)

    def open(self) -> None:
        """The broker stops: take in all jobs that lie in the sockets, or they would be lost."""
        self._open = True
        self.resume_if_room()

    def _has_not_enough_room(self) -> bool:
        ready, size = _lower(self._max_ready), _lower(self._max_bytes)
        return self.bounded and not self._open and self._room(ready, size) <= 0

    def _room(self, ready: int | None, size: int | None) -> float:
        """Return how many more jobs fit below these bounds."""
        room = math.inf if ready is None else ready - self.waiting
        return room if size is None or self.size < size else 0


def _lower(most: int | None) -> int | None:
    # The part of a bound that must be free before held connections are read again: one in this many.
    return None if most is None else most - max(1, most // 8) + 1
