"""Messages that have begun to come and are not complete: how much memory they may take together."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub

#: So many bytes of any message are not counted: a small one never waits.
SMALL = 65_536
MOST_BYTES = 128 << 20
_TIMEOUT = 30.0  # seconds
_PROGRESS = 65_536  # bytes in that time
_TURN = 262_144  # bytes that one who reads on takes until it is asked again


class Reader(Protocol):
    """A connection, which may hold a large message that is not complete."""

    received: int
    """Messages that it has received so far."""

    @property
    def reading(self) -> bool:
        """Nobody has paused it."""

    def pause(self, by: object) -> None:
        """Read no more."""

    def resume(self, by: object) -> None:
        """Read on."""

    def stalled(self, why: str) -> None:
        """End it, unless something has come that was only not read yet."""


class Unfinished:
    """The budget of all connections of a process for such messages.

    A connection reads on while its message takes less than what is left of the budget: so a few share
    nearly all of it, many have little each, and something is left for whoever comes (the rule of the
    dynamic threshold in network switches, Choudhury and Hahne 1998). Others wait: they are not read, and
    TCP lets their peers wait. The one that began first reads on in any case, outside the budget, so that
    somebody always ends; while others wait, one that is read and sends less than 64 KiB of its message
    in ``timeout`` seconds is cut.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        *,
        short: Callable[[str], None],
        timeout: float = _TIMEOUT,
    ) -> None:
        """``short(text)`` is called when the budget gets short: when the first has to wait."""
        self.bytes = 0
        self._most_bytes = most_bytes
        self._short = short
        self._timeout = timeout
        self._sizes: OrderedDict[Reader, int] = OrderedDict()  # the one that began first is the first
        self._waiting: dict[Reader, tuple[int, int]] = {}
        self._queue: list[tuple[int, int, Reader]] = []  # who waits, by size, then by number
        self._number = 0
        self._seen: dict[Reader, tuple[int, int]] = {}  # messages and bytes, at the last look
        self._clock: Any = None
        self._closed = False

    def close(self) -> None:
        """Have all wait until :meth:`open`, the first too: what is complete leaves no memory for them."""
        self._closed = True

    def open(self) -> None:
        """Go on as the budget allows."""
        if self._closed:
            self._closed = False
            self._admit()

    @property
    def waiting(self) -> int:
        """Connections that are not read for now."""
        return len(self._waiting)

    def hold(self, reader: Reader, size: int) -> None:
        """The message that ``reader`` holds takes so many bytes now; 0: it holds none, or has ended."""
        before = self._sizes.get(reader, 0)
        self.bytes += size - before
        if size:
            self._sizes[reader] = size
            if not self._may_read(reader, size):
                self._wait(reader, size)
        else:
            self._sizes.pop(reader, None)
            self._seen.pop(reader, None)
            self._read_on(reader)
        if size < before and self._waiting:
            self._admit()

    def may_read(self, reader: Reader) -> bool:
        """True if one that holds something may read on; if not, it is paused: others were faster."""
        size = self._sizes[reader]
        if not self._may_read(reader, size):
            self._wait(reader, size)
        return reader not in self._waiting

    def _may_read(self, reader: Reader, size: int) -> bool:
        return not self._closed and (size < self._left or reader is next(iter(self._sizes)))

    @property
    def _left(self) -> int:
        """Bytes of the budget; the one that began first is outside of it."""
        first = next(iter(self._sizes.values()), 0)
        return self._most_bytes - (self.bytes - first)

    def _wait(self, reader: Reader, size: int) -> None:
        if reader in self._waiting:
            return
        if not self._waiting:
            self._begin_to_look()
        self._number += 1
        self._waiting[reader] = (size, self._number)
        insort(self._queue, (size, self._number, reader))
        self._seen.pop(reader, None)
        reader.pause(self)

    def _admit(self) -> None:
        """Have those go on who may: who began first, and who holds less than is left."""
        if self._closed:
            return
        first = next(iter(self._sizes), None)
        if first in self._waiting:
            self._read_on(first)
        left = self._left
        while self._queue and self._queue[0][0] < left:
            self._read_on(self._queue[0][2])
            left -= _TURN

    def _read_on(self, reader: Reader) -> None:
        place = self._waiting.pop(reader, None)
        if place is None:
            return
        del self._queue[bisect_left(self._queue, place, key=_place)]
        if not self._waiting:
            self._clock.stop()
        reader.resume(self)

    # ------------------------------------------------------- who makes no progress

    def _begin_to_look(self) -> None:
        self._short(
            f"messages that are not complete take {self.bytes >> 20} MiB of {self._most_bytes >> 20}: "
            "the largest are not read for now"
        )
        self._seen = {reader: (reader.received, size) for reader, size in self._sizes.items()}
        self._look_later()

    def _look_later(self) -> None:
        if self._clock:
            self._clock.close()
        self._clock = get_hub().loop.timer(self._timeout)
        self._clock.start(self._look, update=True)  # from now, however long this turn has taken

    def _look(self) -> None:
        """Cut those that are read, others wait for, and that send nothing."""
        self._look_later()
        before = self._seen
        self._seen = {
            reader: (reader.received, size) for reader, size in self._sizes.items() if reader.reading
        }
        for reader, now in list(self._seen.items()):
            then = before.get(reader)
            if then and then[0] == now[0] and now[1] - then[1] < _PROGRESS:
                reader.stalled(
                    f"it sent no more of a message of which {now[1]} bytes had come, for "
                    f"{self._timeout:g} s in which others had to wait for their memory"
                )


def _place(entry: tuple[int, int, Reader]) -> tuple[int, int]:
    return entry[:2]
