"""The memory for what peers were sent and have not taken, and for answers that are being made."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from gevent import get_hub
from gevent.event import AsyncResult

from sluicemq_devices.hub import shielded

#: Bytes that any peer may leave unread, whatever others hold: a small answer never waits for others.
SMALL: Final = 16_384
MOST_BYTES: Final = 128 << 20
_LOOK: Final = 1.0  # seconds between looks at who takes nothing while others wait
_PATIENCE: Final = 3  # looks in a row at which a peer has taken next to nothing; then it is cut
_PROGRESS: Final = 65_536  # bytes that a peer takes from one look to the next, at least


class Peer(Protocol):
    """A connection that is sent something."""

    @property
    def taken(self) -> int:
        """Bytes that the peer has taken so far, counted from any moment."""

    def filled(self) -> None:
        """Read no more of it: it leaves too much unread."""

    def drained(self) -> None:
        """Read on."""

    def cut(self, why: str) -> None:
        """End it at once, for a reason that is told."""


class Outgoing:
    """The budget of all connections of a process for what goes out.

    A peer may hold as much as it leaves to others: one alone half of the budget, two a third each (the rule
    of the dynamic threshold in network switches, Choudhury and Hahne 1998). Beyond that it is not read until
    it has taken most of what it was sent. A small answer is always made; a larger one reserves its size
    first (:meth:`Ration.reserve`), and waits while the budget has no room: the smallest goes first. While
    any waits, a peer that leaves more than ``SMALL`` bytes unread and takes nothing for seconds is cut.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        *,
        look: float = _LOOK,
    ) -> None:
        """``look``: seconds between two looks at who takes nothing."""
        self.most_bytes = most_bytes
        self.bytes = 0
        """Bytes that are unread or reserved now."""
        self.short: Callable[[str], object] = len
        """Called with a text when the first has to wait."""
        self._every = look
        self._rations: dict[Ration, None] = {}  # of those that hold something
        self._queue: list[tuple[int, int, Ration]] = []  # who waits, by what it would hold, then by number
        self._number = 0
        self._seen: dict[
            Ration, tuple[int, int]
        ] = {}  # how often it was seen to take nothing, and what it had
        self._clock: Any = None

    @property
    def waiting(self) -> int:
        """Peers that wait for room."""
        return len(self._queue)

    @property
    def room(self) -> int:
        """Bytes that a peer which holds nothing may be sent."""
        return max(SMALL, self.most_bytes - self.bytes)

    def waited_for(self, size: int) -> int:
        """Bytes for which somebody waits who wants so many: no more than half of the budget."""
        return min(size, self.most_bytes // 2)

    def ration(self, peer: Peer | None) -> Ration:
        """Return the account of one peer; :meth:`Ration.close` ends it. None: it is nobody to be cut."""
        return Ration(self, peer)

    # ------------------------------------------------------- by the rations

    def changed(self, ration: Ration, more: int) -> None:
        """``ration`` holds so many bytes more; fewer, if it is negative."""
        self.bytes += more
        size = ration.size
        if size:
            self._rations[ration] = None
        else:
            self._rations.pop(ration, None)
            self._seen.pop(ration, None)
        if ration.line:
            self.stand(ration)
        if more > 0:
            if not ration.is_full and size >= self.room:
                ration.fill()
            return
        if ration.is_full and 2 * size <= self.room:
            ration.drain()
        if self._queue:
            self._admit()

    def stand(self, ration: Ration) -> None:
        """Give a ration the place that its first reservation has, or none while it leaves much unread."""
        was_quiet = not self._queue
        if ration.place is not None:
            del self._queue[bisect_left(self._queue, ration.place, key=_place)]
            ration.place = None
        if ration.line and ration.unread <= SMALL:
            if not ration.number:
                self._number = ration.number = self._number + 1
            ration.place = (ration.size + self.waited_for(ration.line[0][0]), ration.number)
            insort(self._queue, (*ration.place, ration), key=_place)
            if was_quiet:
                self._begin_to_look()
        else:
            ration.number = 0
            if not (self._queue or was_quiet):
                self._clock.stop()

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self.room:
            self._queue[0][2].admit()

    # --------------------------------------------------- who takes nothing

    def _begin_to_look(self) -> None:
        self.short(
            f"answers that are not read, or are being made, take {self.bytes >> 20} MiB of "
            f"{self.most_bytes >> 20}: the next ones wait"
        )
        self._seen = {ration: (0, ration.taken) for ration in self._rations}
        self._look_later()

    def _look_later(self) -> None:
        if self._clock:
            self._clock.close()
        self._clock = get_hub().loop.timer(self._every)
        self._clock.start(self._look, update=True)  # from now, however long this turn has taken

    def _look(self) -> None:
        """Cut those that leave much unread and take nothing."""
        self._look_later()
        before, self._seen = self._seen, {}
        for ration in list(self._rations):
            if ration.unread <= SMALL:
                continue
            taken = ration.taken
            idle, then = before.get(ration, (0, taken - _PROGRESS))
            idle = idle + 1 if taken - then < _PROGRESS else 0
            self._seen[ration] = idle, taken
            if idle >= _PATIENCE:
                ration.cut(
                    f"it has {ration.unread} bytes unread and took next to nothing for "
                    f"{_PATIENCE * self._every:g} s in which others had to wait for their memory"
                )


class Ration:
    """The account of one peer: bytes that lie unread, and bytes reserved for answers to it."""

    __slots__ = ("_closed", "_outgoing", "_peer", "is_full", "line", "number", "place", "reserved", "unread")

    def __init__(self, outgoing: Outgoing, peer: Peer | None) -> None:
        self.unread = 0
        self.reserved = 0
        self.is_full = False
        """True from when the peer holds all it may until it holds less than half of that."""
        self.line: deque[tuple[int, Callable[[bool], object]]] = deque()
        """Reservations that wait, in order: bytes, and what is called then."""
        self.place: tuple[int, int] | None = None
        """The place among all that wait: what the peer would hold, and its number."""
        self.number = 0
        self._outgoing = outgoing
        self._peer = peer
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self.unread + self.reserved

    @property
    def taken(self) -> int:
        """Bytes that its peer has taken so far."""
        return self._peer.taken if self._peer and not self._closed else 0

    def hold(self, unread: int) -> None:
        """Note that ``unread`` bytes lie unread now."""
        if unread != self.unread and not self._closed:
            more = unread - self.unread
            self.unread = unread
            self._outgoing.changed(self, more)

    def reserve(self, size: int, timeout: float | None = None) -> bool:
        """Wait in a greenlet until the peer has taken what it was sent, and there is room for an answer.

        Its bytes are reserved then: call :meth:`release` once the answer was sent, and counts as unread.
        False: the peer has gone, or the time is over, and nothing is reserved.
        """
        told: AsyncResult[bool] = AsyncResult()
        entry = self.when_room(size, told.set)
        got = told.wait(timeout)
        if got is None and entry is not None and entry in self.line:
            self.line.remove(entry)
            self._outgoing.stand(self)
        return bool(got)

    def when_room(
        self, size: int, then: Callable[[bool], object]
    ) -> tuple[int, Callable[[bool], object]] | None:
        """Call ``then(True)`` when so many bytes are reserved, now or later; ``then(False)``: it has gone.

        It is called in the order of the calls. More than half of the budget is never waited for.
        """
        if self._closed:
            then(False)  # noqa: FBT003
        elif not self.line and self.unread <= SMALL and self.fits(size):
            self.take(size)
            then(True)  # noqa: FBT003
        else:
            entry = size, then
            self.line.append(entry)
            if len(self.line) == 1:
                self._outgoing.stand(self)
            return entry
        return None

    def release(self, size: int) -> None:
        """End a reservation of this size."""
        size = self._outgoing.waited_for(size)
        self.reserved -= size
        self._outgoing.changed(self, -size)

    def admit(self) -> None:
        """There is room for the first in line."""
        size, then = self.line.popleft()
        self._outgoing.stand(self)
        self.take(size)
        shielded(then, True)  # noqa: FBT003

    def fill(self) -> None:
        """Note that the peer holds all it may."""
        self.is_full = True
        if self._peer:
            self._peer.filled()

    def drain(self) -> None:
        """Note that the peer holds less than half of what it may."""
        self.is_full = False
        if self._peer:
            self._peer.drained()

    def fits(self, size: int) -> bool:
        """True if it may be sent so many bytes more now."""
        return self.size + self._outgoing.waited_for(size) <= self._outgoing.room

    def take(self, size: int) -> None:
        """Reserve so many bytes, whether or not there is room."""
        size = self._outgoing.waited_for(size)
        self.reserved += size
        self._outgoing.changed(self, size)

    def cut(self, why: str) -> None:
        """End the connection."""
        if self._peer:
            self._peer.cut(why)

    def close(self) -> None:
        """The peer has gone. What is reserved is so until it is released: it is being made still."""
        if self._closed:
            return
        self.hold(0)
        self._closed = True
        line, self.line = self.line, deque()
        self._outgoing.stand(self)
        for _, then in line:
            shielded(then, False)  # noqa: FBT003
        self._peer = None


def _place(entry: tuple[Any, ...]) -> tuple[int, int]:
    return entry[0], entry[1]
