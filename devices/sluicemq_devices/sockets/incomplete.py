"""A budget of memory for messages that have begun to arrive and are not complete."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub

#: Bytes of each message that are not counted: a small message never waits.
SMALL = 65_536
MOST_BYTES = 128 << 20
_TIMEOUT = 30.0  # seconds
_PROGRESS = 65_536  # bytes in that time
_TURN = 262_144  # bytes that a connection reads before it must ask again


class MessageReader(Protocol):
    """A connection, which may hold a large message that is not complete."""

    received: int
    """Messages received so far."""

    @property
    def reading(self) -> bool:
        """True unless it is paused."""

    def pause(self, by: object) -> None:
        """Stop reading."""

    def resume(self, by: object) -> None:
        """Go on reading."""

    def stalled(self, why: str) -> None:
        """End the connection, unless bytes have arrived that were not read yet."""


class Unfinished:
    """The budget of all connections of a process for incomplete messages.

    A connection is read while its message takes less than is left of the budget: a few share nearly all of
    it, many have little each, and there is room for the next one (the dynamic threshold of network switches,
    Choudhury and Hahne 1998). The others are not read, and TCP makes their peers wait. The message that began
    first is always read, outside the budget, so that one always ends. While others wait, a connection that is
    read and brings less than 64 KiB of its message in ``timeout`` seconds is cut. A connection that is not
    read for another reason keeps its part of the budget, and is not the first (:meth:`set_aside`).
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        *,
        short: Callable[[str], None],
        timeout: float = _TIMEOUT,
    ) -> None:
        """``short(text)`` is called when a first connection has to wait."""
        self.bytes = 0
        self._most_bytes = most_bytes
        self._short = short
        self._timeout = timeout
        self._sizes: OrderedDict[MessageReader, int] = OrderedDict()  # in the order in which they began
        self._aside: dict[MessageReader, int] = {}  # sizes of those that are not read for another reason
        self._waiting: dict[MessageReader, tuple[int, int]] = {}
        self._queue: list[tuple[int, int, MessageReader]] = []  # those that wait, by size, then by number
        self._number = 0
        self._seen: dict[MessageReader, tuple[int, int]] = {}  # messages and bytes, at the last look
        self._clock: Any = None
        self.closed = False

    def close(self) -> None:
        """Let all wait until :meth:`open`, the first too: complete messages leave no memory for them."""
        self.closed = True

    def open(self) -> None:
        """Read on as far as the budget allows."""
        if self.closed:
            self.closed = False
            self._admit()

    @property
    def waiting(self) -> int:
        """Connections that are not read for now."""
        return len(self._waiting)

    def hold(self, reader: MessageReader, size: int) -> None:
        """Note that the message of ``reader`` takes ``size`` bytes now; 0: it has none, or has ended."""
        self._take_back(reader)
        before = self._sizes.get(reader, 0)
        self.bytes += size - before
        if size:
            self._sizes[reader] = size
            if not self._may_read(reader, size):
                self._wait(reader, size)
        else:
            self._sizes.pop(reader, None)
            self._seen.pop(reader, None)
            self._resume(reader)
        if size < before and self._waiting:
            self._admit()

    def may_read(self, reader: MessageReader) -> bool:
        """True if a connection with an incomplete message may be read on; if not, it is paused."""
        self._take_back(reader)
        size = self._sizes[reader]
        if not self._may_read(reader, size):
            self._wait(reader, size)
        return reader not in self._waiting

    def set_aside(self, reader: MessageReader) -> None:
        """Note that its own receiver has paused a connection: others go on before its message."""
        size = self._sizes.pop(reader, 0)
        if size:
            self._aside[reader] = size
            self._seen.pop(reader, None)
            self._admit()

    def _take_back(self, reader: MessageReader) -> None:
        size = self._aside.pop(reader, 0)
        if size:
            self._sizes[reader] = size

    def _may_read(self, reader: MessageReader, size: int) -> bool:
        return not self.closed and (size < self._left or reader is next(iter(self._sizes)))

    @property
    def _left(self) -> int:
        """Bytes left of the budget; the message that began first is outside of it."""
        first = next(iter(self._sizes.values()), 0)
        return self._most_bytes - (self.bytes - first)

    def _wait(self, reader: MessageReader, size: int) -> None:
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
        """Read on those that may: the one that began first, and those that hold less than is left."""
        if self.closed:
            return
        first = next(iter(self._sizes), None)
        if first in self._waiting:
            self._resume(first)
        left = self._left
        while self._queue and self._queue[0][0] < left:
            self._resume(self._queue[0][2])
            left -= _TURN

    def _resume(self, reader: MessageReader) -> None:
        place = self._waiting.pop(reader, None)
        if place is None:
            return
        del self._queue[bisect_left(self._queue, place, key=_place)]
        if not self._waiting:
            self._clock.stop()
        reader.resume(self)

    # ------------------------------------------- messages that make no progress

    def _begin_to_look(self) -> None:
        self._short(
            f"messages that are not complete take {self.bytes >> 20} MiB of {self._most_bytes >> 20}: "
            "the largest are not read for now"
        )
        self._seen = {reader: (reader.received, size) for reader, size in self._sizes.items()}
        self._check_later()

    def _check_later(self) -> None:
        if self._clock:
            self._clock.close()
        self._clock = get_hub().loop.timer(self._timeout)
        self._clock.start(self._cut_idle, update=True)  # from now, however long this turn has taken

    def _cut_idle(self) -> None:
        """Cut the connections that are read and send nothing while others wait."""
        self._check_later()
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


def _place(entry: tuple[int, int, MessageReader]) -> tuple[int, int]:
    return entry[:2]
