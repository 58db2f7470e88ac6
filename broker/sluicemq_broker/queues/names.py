"""What somebody may have meant who named a queue that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest
from itertools import islice
from typing import Final

#: Names that are looked at; of these so many, with most in common, are compared letter by letter, which
#: takes a tenth of a millisecond each for the longest.
_LOOKED_AT: Final = 1000
_COMPARED: Final = 20
_LONGER: Final = 3  # letters, at most: else the names are not near
_ALIKE: Final = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that ``name`` may be a typing error for; None: none is near."""
    near = islice((each for each in known if abs(len(each) - len(name)) <= _LONGER), _LOOKED_AT)
    letters = _pairs(name)
    candidates = nlargest(_COMPARED, near, key=lambda each: len(letters & _pairs(each)))
    by_lower = {each.lower(): each for each in candidates}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=_ALIKE)
    return by_lower[found[0]] if found else None


def _pairs(name: str) -> set[str]:
    lower = name.lower()
    return {lower[at : at + 2] for at in range(len(lower))}
