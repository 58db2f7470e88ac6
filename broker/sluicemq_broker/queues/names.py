"""A guess which queue was meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest
from itertools import islice


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to ``name``; None: none is near."""
    near = islice((candidate for candidate in known if abs(len(candidate) - len(name)) <= 3), 1000)
    pairs = _pairs(name)
    candidates = nlargest(20, near, key=lambda name: len(pairs & _pairs(name)))
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def _pairs(name: str) -> set[str]:
    lower = name.lower()
    return {lower[at : at + 2] for at in range(len(lower))}
