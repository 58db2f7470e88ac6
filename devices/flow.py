"""High-water marks: how much may be held before whoever fills it is told to wait."""

from __future__ import annotations

import sys
from collections.abc import Callable

from devices.callbacks import nothing


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
        self._hwm = hwm
        self._hwm_bytes = hwm_bytes
        self._full = full
        self._drained = drained

    def take(self, count: int, size: int) -> None:
        """``count`` more things of ``size`` bytes together are held."""
        self.count += count
        self.bytes += size
        if not self.is_full and (self.count >= self._hwm or self.bytes >= self._hwm_bytes):
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
        """Under half of both, or empty: a mark of 1 has no half."""
        return self.count == 0 or (2 * self.count < self._hwm and 2 * self.bytes < self._hwm_bytes)


def boundless() -> Watermark:
    """Count without a limit."""
    return Watermark(sys.maxsize, sys.maxsize, nothing, nothing)
