"""High-water marks: how much may be held before its senders have to wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from sluicemq_devices.hub.callbacks import nothing

Key = TypeVar("Key", bound=Hashable)


class Watermark:
    """Counts what is held, by number and by bytes.

    ``full()`` is called once when either limit is reached, ``drained()`` once when both are back
    under half: the gap keeps a door from opening and closing with every message.
    """

    def __init__(
        self, hwm: int, hwm_bytes: int, full: Callable[[], None], drained: Callable[[], None]
    ) -> None:
        self.count = 0
        self.bytes = 0
        self.is_full = False
        self.hwm = hwm
        self.hwm_bytes = hwm_bytes
        self._full = full
        self._drained = drained

    def take(self, count: int, size: int) -> None:
        """``count`` more things of ``size`` bytes together are held."""
        self.count += count
        self.bytes += size
        if not self.is_full and (self.count >= self.hwm or self.bytes >= self.hwm_bytes):
            self.is_full = True
            self._full()

    def give(self, count: int, size: int) -> None:
        """``count`` things of ``size`` bytes together are held no more."""
        self.count -= count
        self.bytes -= size
        if self.is_full and self._is_low():
            self.is_full = False
            self._drained()

    def _is_low(self) -> bool:
        """True under half of both limits, or if empty: a mark of 1 has no half."""
        return self.count == 0 or (2 * self.count < self.hwm and 2 * self.bytes < self.hwm_bytes)


class Shares(Generic[Key]):
    """One mark that several keys fill: each may hold as much of it as is free for the others.

    With a ``part`` of 1, one key holds half of the mark at most, two a third each, n of them 1/(n+1) each,
    and 1/(n+1) is left for the next one, so no key fills it for the others ("dynamic queue length
    thresholds", Choudhury and Hahne 1998). A smaller part leaves more.

    ``drained(key)`` is called once when one that was full holds less than half of what it may.
    """

    def __init__(self, mark: Watermark, drained: Callable[[Key], None], part: float = 1.0) -> None:
        self.mark = mark
        self._drained = drained
        self._part = part
        self._held: dict[Key, _Share] = {}

    def take(self, key: Key, count: int, size: int) -> bool:
        """``count`` more things of ``size`` bytes together are held under this key; True: it is full."""
        mark = self.mark
        mark.take(count, size)
        share = self._held.get(key)
        if share is None:
            share = self._held[key] = _Share()
        share.count += count
        share.bytes += size
        if (
            share.count >= self._part * (mark.hwm - mark.count)
            or share.bytes >= self._part * (mark.hwm_bytes - mark.bytes)
        ):  # fmt: skip
            share.is_full = True
        return share.is_full

    def give(self, key: Key, count: int, size: int) -> None:
        """``count`` things of ``size`` bytes together are held under this key no more."""
        share = self._held[key]
        share.count -= count
        share.bytes -= size
        if not share.count:
            del self._held[key]
        self.mark.give(count, size)
        if share.is_full and self._is_low(share):
            share.is_full = False
            self._drained(key)

    def forget(self, key: Key) -> None:
        """Nothing is held under this key any more; ``drained`` is not called."""
        share = self._held.pop(key, None)
        if share:
            self.mark.give(share.count, share.bytes)

    def has_room(self, key: Key, count: int, size: int) -> bool:
        """True if ``count`` more things of ``size`` bytes together would not fill the share of this key."""
        mark, share = self.mark, self._held.get(key)
        held, held_bytes = (share.count, share.bytes) if share else (0, 0)
        return (
            held + count <= self._part * (mark.hwm - mark.count)
            and held_bytes + size <= self._part * (mark.hwm_bytes - mark.bytes)
        )  # fmt: skip

    def is_full(self, key: Key) -> bool:
        """True from the moment the key holds all it may until it holds less than half of that."""
        share = self._held.get(key)
        return share is not None and share.is_full

    def _is_low(self, share: _Share) -> bool:
        """True under half of what the key may hold, or if it holds nothing."""
        count, size = self.mark.hwm - self.mark.count, self.mark.hwm_bytes - self.mark.bytes
        return not share.count or (
            2 * share.count < self._part * count and 2 * share.bytes < self._part * size
        )


class Pausable(Protocol):
    """A connection that can be left unread for several reasons."""

    def pause(self, by: object) -> None:
        """Stop reading the connection for this reason."""

    def resume(self, by: object) -> None:
        """Drop this reason; the connection is read again when none is left."""


class Fillers(Generic[Key]):
    """Shares of one mark, and the connections that fill each: while a share is full, these are not read.

    A connection is a filler of a share only while something of its own is held there, so one whose things
    have all gone through does not wait for others. Each filler is paused while the share is full, maybe more
    than once, and resumed when the share has drained, or the connection has nothing in it.
    """

    def __init__(self, mark: Watermark) -> None:
        self.mark = mark
        self._shares: Shares[Key] = Shares(mark, self._drained)
        self._fillers: dict[Key, dict[Pausable, int]] = {}
        """For each key and connection: how many of its takes are still held."""

    def __len__(self) -> int:
        """Return how many shares have fillers."""
        return len(self._fillers)

    def take(self, key: Key, filler: Pausable, count: int, size: int) -> None:
        """Hold ``count`` more things of ``size`` bytes together."""
        fillers = self._fillers.setdefault(key, {})
        fillers[filler] = fillers.get(filler, 0) + 1
        was_full = self._shares.is_full(key)
        if self._shares.take(key, count, size):
            for connection in [filler] if was_full else list(fillers):
                connection.pause(key)

    def give(self, key: Key, filler: Pausable, count: int, size: int) -> None:
        """Give back what one :meth:`take` has taken."""
        fillers = self._fillers[key]
        was_full = self._shares.is_full(key)
        self._shares.give(key, count, size)
        fillers[filler] -= 1
        if not fillers[filler]:
            del fillers[filler]
            if was_full:
                filler.resume(key)
        if not fillers and self._fillers.get(key) is fillers:
            del self._fillers[key]

    def _drained(self, key: Key) -> None:
        for connection in list(self._fillers[key]):
            connection.resume(key)


class _Share:
    """Count and bytes held under one key."""

    __slots__ = ("bytes", "count", "is_full")

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.is_full = False


def boundless() -> Watermark:
    """Return a mark that counts and has no limit."""
    return Watermark(sys.maxsize, sys.maxsize, nothing, nothing)
