"""Which dead letters are meant, where not all of a queue are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict


class Letters(TypedDict, total=False):
    """Dead letters with the text ``reason`` in their last error, dead from ``since`` on and before ``until``.

    Times are Unix seconds, or a ``datetime`` (of local time without a zone); ``limit``: the oldest so many.
    """

    reason: str | None
    since: float | datetime | None
    until: float | datetime | None
    limit: int | None


def described(ids: Sequence[str] | None, letters: Letters) -> dict[str, Any]:
    """As the broker is told: of those with these ids (None: of all)."""
    given = {"ids": None if ids is None else list(ids), **letters}
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: object) -> object:
    return value.timestamp() if isinstance(value, datetime) else value
