"""A budget of memory for messages that peers have not taken, and for answers that are being made."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from gevent import get_hub
from gevent.event import AsyncResult

from sluicemq_devices.hub import shielded

#: Bytes that each peer may leave unread, however much the others hold: a small answer never waits.
SMALL: Final = 16_384
MOST_BYTES: Final = 128 << 20
_LOOK: Final = 1.0  # seconds between looks for peers that take nothing while others wait
_PATIENCE: Final = 3  # looks in a row at which a peer has taken next to nothing; then it is cut
_PROGRESS: Final = 65_536  # bytes that a peer takes from one look to the next, at least


class BudgetedPeer(Protocol):
    """A connection to which messages are sent."""

    @property
    def taken(self) -> int:
        """Bytes that the peer has taken since some moment."""

    def filled(self) -> None:
        """Stop reading the peer: it leaves too much unread."""

    def drained(self) -> None:
        """Read the peer again."""

    def cut(self, why: str) -> None:
        """End the connection at once, and log the reason."""


class Outgoing:
    """The budget of all connections of a process for outgoing bytes.

    A peer may hold as much as is free for the others: one peer half of the budget, two a third each (the
    dynamic threshold of network switches, Choudhury and Hahne 1998). A peer that holds more is not read until
    it has taken most of it. A small answer is always made. A larger one first reserves its size
    (:meth:`Ration.reserve`) and waits while there is no room; the smallest goes first. While an answer waits,
    a peer that leaves more than ``SMALL`` bytes unread and takes nothing for some seconds is cut.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        *,
        look: float = _LOOK,
    ) -> None:
        """``look``: seconds between two looks for peers that take nothing."""
        self.most_bytes = most_bytes
        self.bytes = 0
        """Bytes that are unread or reserved now."""
        self.short: Callable[[str], object] = len
        """Called with a text when a first peer has to wait."""
        self._every = look
        self._rations: dict[Ration, None] = {}  # of those that hold something
        self._queue: list[
            tuple[int, int, Ration]
        ] = []  # peers that wait, by the bytes they would hold, then by number
        self._number = 0
        self._seen: dict[
            Ration, tuple[int, int]
        ] = {}  # looks at which it had taken next to nothing, and bytes it had taken
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
        """Return the bytes that an answer of ``size`` reserves: half of the budget at most."""
        return min(size, self.most_bytes // 2)

    def ration(self, peer: BudgetedPeer | None) -> Ration:
        """Return the account of a peer; :meth:`Ration.close` ends it. None: an account that can't be cut."""
        return Ration(self, peer)

    # ------------------------------------------------- called by the rations

    def changed(self, ration: Ration, more: int) -> None:
        """Note that ``ration`` holds ``more`` bytes more (negative: fewer)."""
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
        """Put a ration in line for its first reservation, or take it out while it leaves much unread."""
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

    # ------------------------------------------ peers that take nothing

    def _begin_to_look(self) -> None:
        self.short(
            f"answers that are not read, or are being made, take {self.bytes >> 20} MiB of "
            f"{self.most_bytes >> 20}: the next ones wait"
        )
        self._seen = {ration: (0, ration.taken) for ration in self._rations}
        self._check_later()

    def _check_later(self) -> None:
        if self._clock:
            self._clock.close()
        self._clock = get_hub().loop.timer(self._every)
        self._clock.start(self._cut_idle, update=True)  # from now, however long this turn has taken

    def _cut_idle(self) -> None:
        """Cut peers that leave much unread and take nothing."""
        self._check_later()
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
    """The account of one peer: bytes it has not taken, and bytes reserved for answers to it."""

    __slots__ = ("_closed", "_outgoing", "_peer", "is_full", "line", "number", "place", "reserved", "unread")

    def __init__(self, outgoing: Outgoing, peer: BudgetedPeer | None) -> None:
        self.unread = 0
        self.reserved = 0
        self.is_full = False
        """True from the moment the peer holds all it may until it holds less than half of that."""
        self.line: deque[tuple[int, Callable[[bool], object]]] = deque()
        """Reservations that wait, in order: bytes, and the callback."""
        self.place: tuple[int, int] | None = None
        """Position among all that wait: the bytes the peer would hold, and its number."""
        self.number = 0
        self._outgoing = outgoing
        self._peer = peer
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes that the account holds."""
        return self.unread + self.reserved

    @property
    def taken(self) -> int:
        """Bytes that the peer has taken so far."""
        return self._peer.taken if self._peer and not self._closed else 0

    def hold(self, unread: int) -> None:
        """Note that the peer leaves ``unread`` bytes unread now."""
        if unread != self.unread and not self._closed:
            more = unread - self.unread
            self.unread = unread
            self._outgoing.changed(self, more)

    def reserve(self, size: int, timeout: float | None = None) -> bool:
        """Wait in a greenlet until the peer has taken what it was sent and the budget has room for an answer.

        ``size`` bytes are reserved then: call :meth:`release` after the answer was sent, which counts as
        unread. False: the peer has left, or ``timeout`` is over, and no bytes are reserved.
        """
        outcome: AsyncResult[bool] = AsyncResult()
        entry = self.when_room(size, outcome.set)
        reserved = outcome.wait(timeout)
        if reserved is None and entry is not None and entry in self.line:
            self.line.remove(entry)
            self._outgoing.stand(self)
        return bool(reserved)

    def when_room(
        self, size: int, then: Callable[[bool], object]
    ) -> tuple[int, Callable[[bool], object]] | None:
        """Call ``then(True)`` once ``size`` bytes are reserved, or ``then(False)`` if the peer leaves before.

        Callbacks come in the order of the calls. An answer never waits for more than half of the budget.
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
        """End a reservation of ``size`` bytes."""
        size = self._outgoing.waited_for(size)
        self.reserved -= size
        self._outgoing.changed(self, -size)

    def admit(self) -> None:
        """Grant the first reservation in line."""
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
        """True if the peer may be sent ``size`` bytes more now."""
        return self.size + self._outgoing.waited_for(size) <= self._outgoing.room

    def take(self, size: int) -> None:
        """Reserve ``size`` bytes, even if there is no room."""
        size = self._outgoing.waited_for(size)
        self.reserved += size
        self._outgoing.changed(self, size)

    def cut(self, why: str) -> None:
        """End the connection."""
        if self._peer:
            self._peer.cut(why)

    def close(self) -> None:
        """Close the account of a peer that has left. Reserved bytes count until they are released."""
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
