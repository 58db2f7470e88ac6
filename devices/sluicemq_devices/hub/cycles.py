"""When Python looks for objects in cycles: each look is a part of some turn of the hub."""

from __future__ import annotations

import gc


def look_for_cycles(young: int, old: int = 50) -> None:
    """Look among ``young`` new objects at a time, not at all among those that are here now, which stay.

    Each second time those that were left of the former look are looked at too, and after ``old`` of these
    all: a look takes up to a microsecond for each object that is there. By itself Python looks at 700 at a
    time, and at all after 70,000: with 100,000 topics that took 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(young, 1, old)
