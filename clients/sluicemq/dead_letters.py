"""Choice of dead letters: by id, reason and time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from sluicemq import arguments


class DeadLetters(TypedDict, total=False):
    """Dead letters with the text ``reason`` in their last error, dead from ``since`` on and before ``until``.

    Times are Unix seconds, or a ``datetime`` (of local time without a zone). ``limit``: the oldest ones only.
    """

    reason: str | None
    since: float | datetime | None
    until: float | datetime | None
    limit: int | None


def described(ids: Sequence[str] | None, letters: DeadLetters) -> dict[str, Any]:
    """Return the choice as the broker reads it; ``ids``: of these only, None: of all."""
    given = {name: _checked(name, value) for name, value in letters.items() if value is not None}
    if ids is None:
        return given
    chosen = list(ids)
    for id in chosen:  # noqa: A001 - the word that jobs use everywhere
        arguments.text("an id of ids", id)
    return {"ids": chosen, **given}


def _checked(name: str, value: Any) -> object:
    if name not in DeadLetters.__annotations__:
        raise TypeError(
            f"dead letters are chosen by {', '.join(DeadLetters.__annotations__)}, not by {name!r}"
        )
    if name == "reason":
        arguments.text(name, value)
    elif name == "limit":
        arguments.whole(name, value)
    else:
        value = value.timestamp() if isinstance(value, datetime) else value
        arguments.number(name, value)
    return value
