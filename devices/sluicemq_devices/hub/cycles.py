"""When Python looks for objects in cycles: each look is a part of some turn of the hub."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

_ALL: Final = 2
_AT_ONCE: Final = -1  # looks at what is young are looks at the middle generation, too: each is seen once


def look_for_cycles(young: int, step: int, old: int = 100) -> None:
    """Look among ``young`` new objects at a time, not at all among those that are here now, which stay.

    After ``old`` of these at all that are new since the start: a look takes up to a microsecond for each
    object. By itself Python looks at 700 at a time, at each twice, and at all after 70,000: with 100,000
    topics that took 0.1 s.

    So whenever there are ``step`` blocks of memory more than there ever were, all that are new are looked
    at, and what is left is not looked at again. It goes when nobody needs it, like everything, but for what
    stands in a cycle of its own by then: a few kilobytes of each connection of the library that was there.
    """
    gc.freeze()
    gc.collect()
    gc.callbacks.append(_Growth(young, step, old).looked)


class _Growth:
    """Sees to it that there is never much to look at, however much there is."""

    def __init__(self, young: int, step: int, old: int) -> None:
        self._young, self._step, self._old = young, step, old
        self._most = sys.getallocatedblocks()
        self._asked = False
        self._ask(old)

    def looked(self, phase: str, about: dict[str, Any]) -> None:
        """Python has looked, or is about to."""
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
        """Look at all after so many looks at what is new."""
        gc.set_threshold(self._young, _AT_ONCE, old)
