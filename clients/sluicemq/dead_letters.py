"""Choice of dead letters: by id, reason, error, kind and time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypedDict

from sluicemq import arguments


def moment(name: str, value: object) -> None:
    """Check a time: Unix seconds, or a ``datetime``."""
    if not isinstance(value, datetime):
        arguments.number(name, value)


Moment: TypeAlias = Annotated[float | datetime, moment]
"""Unix seconds, or a ``datetime`` (of local time without a zone)."""


class DeadLetterChoice(TypedDict, total=False):
    """Dead letters with the text ``reason`` in their last error, dead from ``since`` on and before ``until``.

    ``error`` and ``place``: the type of the last error and the function that raised it, as ``by_error`` names
    them; ``"?"``: not known. ``kind``: of the jobs. ``limit``: the oldest ones only.
    """

    reason: str | None
    since: Moment | None
    until: Moment | None
    error: str | None
    place: str | None
    kind: str | None
    limit: int | None


def described(ids: Sequence[str] | None, letters: DeadLetterChoice) -> dict[str, Any]:
    """Return the choice as the broker reads it; ``ids``: of these only, None: of all."""
    given = {name: _checked(name, value) for name, value in letters.items() if value is not None}
    if ids is None:
        return given
    chosen = list(ids)
    for id in chosen:  # noqa: A001 - the word that jobs use everywhere
        arguments.text("an id of ids", id)
    return {"ids": chosen, **given}


def _checked(name: str, value: Any) -> object:
    if name not in DeadLetterChoice.__annotations__:
        raise TypeError(
            f"dead letters are chosen by {', '.join(DeadLetterChoice.__annotations__)}, not by {name!r}"
        )
    if name in ("reason", "error", "place", "kind"):
        arguments.text(name, value)
    elif name == "limit":
        arguments.whole(name, value)
    else:
        value = in_unix(value)
        arguments.number(name, value)
    return value


def in_unix(when: Moment | None) -> float | None:
    """Return a time as Unix seconds."""
    return when.timestamp() if isinstance(when, datetime) else when
