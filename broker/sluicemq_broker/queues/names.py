"""A guess which queue was meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest
from itertools import islice
from typing import Final

#: Names that are looked at; the twenty with most in common are compared by characters, which takes up to a
#: tenth of a millisecond each.
_LOOKED_AT: Final = 1000
_COMPARED: Final = 20
_LONGER: Final = 3  # characters by which names may differ in length
_ALIKE: Final = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to ``name``; None: none is near."""
    near = islice((each for each in known if abs(len(each) - len(name)) <= _LONGER), _LOOKED_AT)
    pairs = _pairs(name)
    candidates = nlargest(_COMPARED, near, key=lambda each: len(pairs & _pairs(each)))
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=_ALIKE)
    return by_lower[found[0]] if found else None


def _pairs(name: str) -> set[str]:
    lower = name.lower()
    return {lower[at : at + 2] for at in range(len(lower))}
