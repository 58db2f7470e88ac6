"""A large frame that has not come whole: memory grows only with the bytes that come."""

from __future__ import annotations

import mmap as mmap_module
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

_GROWN = 1 << 20  # bytes of a large frame that must have come before it is received into a mapping


class LargeFrame:
    """The beginning of a large frame, and the number of bytes that are missing.

    Its size alone, which anybody can name, takes no memory. Frames that grow large get a mapping, of which
    only filled pages take memory: a bytearray of that size would be copied again and again.
    """

    __slots__ = ("_body", "_size", "missing")

    def __init__(self) -> None:
        self.missing = 0
        """Bytes that have not come yet; 0: no frame has begun."""
        self._size = 0
        self._body: bytearray | mmap = bytearray()

    @property
    def held(self) -> int:
        """Bytes that have come of the frame."""
        return self._size - self.missing

    def begin(self, size: int, beginning: bytes | memoryview) -> None:
        """Take the next bytes as the rest of a frame of ``size`` bytes."""
        self._body = bytearray(beginning)
        self._size = size
        self.missing = size - len(beginning)

    def add(self, data: bytes | memoryview) -> bytearray | mmap | None:
        """Add the next bytes, no more than are missing; return the frame once it is complete.

        Raises OSError or MemoryError if there is no memory for the rest.
        """
        body, missing = self._body, self.missing - len(data)
        if isinstance(body, mmap):
            at = len(body) - self.missing
            body[at : at + len(data)] = data
        else:
            body += data
            if missing and len(body) >= _GROWN:
                self._body = _mapped(body, len(body) + missing)
        self.missing = missing
        if missing:
            return None
        self.clear()
        return body

    def clear(self) -> None:
        """Free what has come: the frame is complete, or the connection has ended."""
        self._body = bytearray()
        self._size = self.missing = 0


def _mapped(beginning: bytearray, size: int) -> mmap:
    """Return a mapping of ``size`` bytes, of which only filled pages take memory."""
    mapping = _mapping(size)
    mapping[: len(beginning)] = beginning
    return mapping


def memory_of(size: int) -> bytearray | mmap:
    """Return memory for bytes of our own, which are filled in at once."""
    if size < _GROWN:
        return bytearray(size)
    mapping = _mapping(size)
    with suppress(AttributeError, OSError):  # not Linux, or a kernel without them
        mapping.madvise(mmap_module.MADV_HUGEPAGE)  # 12 MiB in pages of 4 KiB take 7 ms, in these 1 ms
    return mapping


def _mapping(size: int) -> mmap:
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
