"""When Python looks for objects in cycles: each look is a part of some turn of the hub."""

from __future__ import annotations

import gc
import sys
from functools import partial
from typing import Any, Final

_NEVER: Final = 2**31 - 1


def look_for_cycles(young: int, old: int = 50, most: int | None = None) -> None:
    """Look among ``young`` new objects at a time, not at all among those that are here now, which stay.

    Each third time those that were left of the former look are looked at too, and after ``old`` of these
    all: a look takes up to a microsecond for each object that is there. By itself Python looks at 700 at a
    time, and at all after 70,000: with 100,000 topics that took 0.1 s.

    ``most``: with so many more blocks of memory than now, all are not looked at: for a process that leaves no
    cycles behind.
    """
    gc.freeze()
    gc.set_threshold(young, 1, old)
    if most is not None:
        gc.callbacks.append(partial(_looked, young, old, sys.getallocatedblocks() + most))


def _looked(young: int, old: int, most: int, phase: str, _about: dict[str, Any]) -> None:
    if phase == "stop":
        gc.set_threshold(young, 1, old if sys.getallocatedblocks() < most else _NEVER)
