"""``sluicemq audit``: administrative acts, logins and refusals at all brokers of a database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from time import sleep, time
from typing import Any, Final

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import timespan
from sluicemq.cli.output import CommandClient, Invocation, shown

#: Seconds between two questions with --follow, and by which a record may come late.
_LOOK: Final = 1.0
_LATE: Final = 60.0


@click.group(cls=Noun, default="list")
def audit() -> None:
    """Look at administrative acts, logins and refusals."""


@audit.command("list")
@click.option("--principal", metavar="NAME", help="Of this principal; '' is anonymous clients.")
@click.option("--action", metavar="ACTION", help="Such as purge; users is all that begin with it.")
@click.option("--name", metavar="NAME", help="About this queue, stream, schedule or principal.")
@click.option("--outcome", type=click.Choice(["done", "begun", "refused"]), help="That ended so.")
@click.option("--newer-than", type=timespan(), metavar="S", help="Of the last seconds.")
@click.option("--older-than", type=timespan(), metavar="S", help="From before that.")
@click.option("--limit", type=click.IntRange(1), metavar="N", default=50, show_default=True, help="At most.")
@click.option("--follow", "-f", is_flag=True, help="What comes from now on, until Ctrl-C.")
@click.pass_obj
def list_(
    invocation: Invocation,
    /,
    newer_than: float | None,
    older_than: float | None,
    limit: int,
    *,
    follow: bool,
    **choice: str | None,
) -> None:
    """Show who changed what, who logged in, and what was refused: the newest first."""
    times = {"since": _before(newer_than), "until": _before(older_than)}
    if follow:
        _follow(invocation, invocation.broker, choice)
    else:
        rows = _pages(invocation.broker, limit, {**choice, **times})
        invocation.answer({"records": rows}, [_line(row) for row in rows], "no records")


def _pages(client: CommandClient, limit: int, choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.sent.audit.list(limit=limit, **choice)
    return found


def _follow(invocation: Invocation, client: CommandClient, choice: Mapping[str, Any]) -> None:
    """Write each new record, and each that was counted on, on a line of its own."""
    for row in _news(client, choice):
        if invocation.as_json:
            invocation.json(row)
        else:
            cells = _line(row)
            texts = [shown(name, value) for name, value in cells.items() if value]
            invocation.line("  ".join(texts))


def _news(client: CommandClient, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    known: dict[str, int] | None = None
    since = max((page["until"] for page in _pages(client, 1, choice)), default=0.0)
    while True:
        rows = _pages(client, sys.maxsize, {**choice, "since": max(0.0, since - _LATE)})
        if known is not None:
            yield from (row for row in reversed(rows) if known.get(row["id"]) != row["count"])
        known = {row["id"]: row["count"] for row in rows}
        since = max((row["until"] for row in rows), default=since)
        sleep(_LOOK)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as a line of a table."""
    times = f"{row['count']} times" if row["count"] > 1 else ""
    about = " ".join(f"{key}={_plain(value)}" for key, value in row["about"].items())
    return {
        "recorded_at": row["until"],
        "who": row["principal"] or "-",
        "from": f"{row['peer']} {row['door']}".strip(),
        "action": row["action"],
        "name": row["name"],
        "outcome": " ".join(filter(None, (row["outcome"], row["code"], times))),
        "about": about,
    }


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _before(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, time() - seconds)
