"""Garbage collection in short pieces: each look for cycles is part of a turn of the hub."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

_ALL: Final = 2
_AT_ONCE: Final = (
    -1
)  # young objects and the middle generation are looked at together: each object is seen once


def look_for_cycles(young: int, step: int, old: int = 100) -> None:
    """Look for cycles among ``young`` new objects at a time, never among objects that exist now.

    After ``old`` such looks, look at all objects that are new since the start. A look takes up to a
    microsecond for each object. By default Python looks at 700 at a time, at each twice, and at all after
    70,000: with 100,000 topics that took 0.1 s.

    Whenever there are ``step`` blocks of memory more than ever before, all new objects are looked at, and
    those that stay are never looked at again. They are freed when their last reference goes, except objects
    in a cycle: a few kilobytes for each connection of the library that existed then.
    """
    gc.freeze()
    gc.collect()
    gc.callbacks.append(_Growth(young, step, old).looked)


class _Growth:
    """Keeps the number of objects to look at small, however many there are."""

    def __init__(self, young: int, step: int, old: int) -> None:
        self._young, self._step, self._old = young, step, old
        self._most = sys.getallocatedblocks()
        self._asked = False
        self._ask(old)

    def looked(self, phase: str, about: dict[str, Any]) -> None:
        """Handle the beginning or the end (``stop``) of a look, as Python calls it."""
        if phase != "stop":
            return
        if self._asked and about["generation"] == _ALL:
            gc.freeze()
            self._most, self._asked = sys.getallocatedblocks(), False
            self._ask(self._old)
        elif not self._asked and sys.getallocatedblocks() > self._most + self._step:
            self._asked = True
            self._ask(0)

    def _ask(self, old: int) -> None:
        """Look at all objects after ``old`` looks at new ones."""
        gc.set_threshold(self._young, _AT_ONCE, old)
