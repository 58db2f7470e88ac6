"""``sluicemq dead-letters``: jobs that have failed for good."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from time import time
from typing import Any, Final

import click

from sluicemq.cli.jobs import in_short, limit_option, list_jobs
from sluicemq.cli.nouns import Noun
from sluicemq.cli.operations import carried_out
from sluicemq.cli.options import Ago, together
from sluicemq.cli.output import CommandClient, Invocation, span
from sluicemq.dead_letters import DeadLetterChoice
from sluicemq.protocol.rows import RedriveRow, plain
from sluicemq.protocol.wire import ShownState

_MOST_SHOWN = 10
#: Options that choose dead letters by their properties.
_COMMON: Final = ("reason", "error", "place", "kind", "newer_than", "older_than")


@click.group(cls=Noun)
def dead_letters() -> None:
    """Look at dead letters, make them ready again, or remove them."""


#: Options that choose dead letters by the time of their death.
_of_time = together(
    click.option("--since", "--newer-than", "newer_than", type=Ago(), metavar="T",
                 help="Those that died at T or later: 2h (ago), or 2030-01-31T12:00."),
    click.option("--until", "--older-than", "older_than", type=Ago(), metavar="T",
                 help="Those that died before T: 2h (ago), or 2030-01-31T12:00."),
)  # fmt: skip
#: Options that choose them by why and when they died, and by kind.
_of_cause = together(
    click.option("--reason", metavar="TEXT", help="Those with TEXT in their last error."),
    click.option("--error", metavar="TYPE", help="Those of this type of error, as in by-error."),
    click.option("--place", metavar="NAME", help="Those raised in this function; ? is none."),
    click.option("--kind", metavar="NAME", help="Those of this kind."),
    _of_time,
)


@dead_letters.command("list")
@click.argument("queue", required=False)
@limit_option
@_of_cause
@click.option("--oldest", is_flag=True, help="The oldest first, of one QUEUE.")
@click.option("--newest", is_flag=True, hidden=True, help="The order without it, too.")
@click.pass_obj
def list_(
    invocation: Invocation, /, queue: str | None, limit: int, *, oldest: bool, newest: bool, **cause: Any
) -> None:
    """List dead letters of a QUEUE, or of all queues, the newest first."""
    which = _which_letters(**cause)
    if oldest:
        if queue is None or newest or which:
            raise click.UsageError("--oldest takes a QUEUE, and no other choice")
        list_jobs(invocation, queue, ShownState.DEAD, limit)
        return
    found = [
        (letter.get("ended_at") or 0, {"queue": name, **letter})
        for name in _with_dead_letters(invocation.broker, queue)
        for letter in _latest(invocation.broker, name, limit + 1, which, whole=invocation.as_json)
    ]
    found.sort(key=itemgetter(0), reverse=True)
    jobs, more = [job for _, job in found[:limit]], len(found) > limit
    if invocation.as_json:
        invocation.json({"queue": queue, "state": ShownState.DEAD, "jobs": jobs, "more": more})
    elif jobs:
        invocation.table("", in_short(jobs, ShownState.DEAD, time(), ("queue",) if queue is None else ()))
        if more:
            invocation.note(f"the newest {limit}: --limit shows more")
    else:
        matching = "matching " if which else ""
        invocation.note(f"no {matching}dead letters{f' in {queue}' if queue else ''}")


def _latest(
    client: CommandClient, queue: str, limit: int, which: dict[str, Any], *, whole: bool
) -> Iterable[dict[str, Any]]:
    """Return the latest dead letters that match, with all their fields or with those of a table."""
    letters = client.sent.dead_letters
    found: Iterable[dict[str, Any]] = (
        islice(letters.iterate(queue, **which), limit) if whole else letters.latest(queue, limit, **which)
    )
    return found


def _with_dead_letters(client: CommandClient, queue: str | None) -> list[str]:
    """Return a queue, or the queues with dead letters that the client may read."""
    if queue is not None:
        return [queue]
    return [row["name"] for row in client.sent.queues.list() if row.get("dead")]


@dead_letters.command()
@click.argument("queue", required=False)
@_of_cause
@click.pass_obj
def export(invocation: Invocation, /, queue: str | None, **cause: Any) -> None:
    """Write dead letters of a QUEUE, or of all queues, as lines of JSON, the newest first.

    A payload that is no text is {"base64": ...}. One above 1 MiB is left out; jobs show has it.
    """
    which = _which_letters(**cause)
    for name in _with_dead_letters(invocation.broker, queue):
        for letter in invocation.broker.sent.dead_letters.iterate(name, **which):
            invocation.json({"queue": name, **letter})


@dead_letters.command()
@click.argument("queue")
@_of_cause
@click.pass_obj
def count(invocation: Invocation, /, queue: str, **cause: Any) -> None:
    """Count the dead letters of a QUEUE."""
    found = invocation.broker.dead_letters.count(queue, **_which_letters(**cause))
    about = "" if found.exact else "about "
    invocation.result(f"{about}{found.count}", queue=queue, count=found.count, exact=found.exact)


@dead_letters.command()
@click.argument("queue")
@_of_time
@click.pass_obj
def by_reason(invocation: Invocation, /, queue: str, **times: float | None) -> None:
    """Show why the latest dead letters of a QUEUE died, the most frequent reasons first."""
    found = plain(invocation.broker.dead_letters.by_reason(queue, **_moments(**times)))
    rows = [{"count": error["count"], "reason": error["reason"]} for error in found]
    invocation.answer({"queue": queue, "reasons": found}, rows, f"no dead letters in {queue}")


@dead_letters.command()
@click.argument("queue", required=False)
@click.pass_obj
def by_error(invocation: Invocation, queue: str | None) -> None:
    """Show the errors of the latest dead letters, of a QUEUE or of all queues: what was raised, and where."""
    found = plain(invocation.broker.dead_letters.by_error(queue))
    none = f"no dead letters{f' in {queue}' if queue else ''}"
    invocation.answer(found, [_error_row(error) for error in found["errors"]], none)
    if found["errors"] and found["looked"] < found["dead"] and not invocation.as_json:
        invocation.note(f"{found['looked']} of {found['dead']} dead letters were looked at")


def _error_row(error: dict[str, Any]) -> dict[str, Any]:
    return {
        "count": f"{'' if error['exact'] else '~'}{error['count']}",
        "type": error["type"],
        "place": error["place"] or None,
        "queues": ", ".join(error["queues"]),
        "kinds": ", ".join(error["kinds"]) or None,
        "workers": ", ".join(error.get("workers") or ()) or None,
        "first": f"{span(time() - error['first_at'])} ago",
        "last": f"{span(time() - error['last_at'])} ago",
        "job": error["job"],
        "reason": error["reason"],
    }


#: Arguments and options that choose dead letters.
_which = together(
    click.argument("queue"),
    click.argument("ids", metavar="[ID]...", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All of them."),
    _of_cause,
    click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, the oldest."),
)


@dead_letters.command()
@_which
@click.option("--to", metavar="OTHER", help="Into another queue.")
@click.pass_obj
def redrive(
    invocation: Invocation, /, queue: str, ids: tuple[str, ...], to: str | None, **which: Any
) -> None:
    """Make dead letters of a QUEUE ready again.

    Choose them by IDs, by a reason or a time, or take --all. Attempts and time to live begin again; the
    history stays. Exits with 1 if an ID can't be redriven.
    """
    wanted = _chosen(ids, **which)
    redriven = carried_out(
        invocation,
        lambda wait: invocation.broker.dead_letters.redrive(queue, ids or None, to=to, wait=wait, **wanted),
    )
    _report(invocation, queue, to, redriven)
    if ids and redriven.refused:
        click.get_current_context().exit(1)


@dead_letters.command()
@_which
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def discard(invocation: Invocation, /, queue: str, ids: tuple[str, ...], *, yes: bool, **which: Any) -> None:
    """Remove dead letters of a QUEUE.

    Choose them by IDs, by a reason or a time; without any of these, all of them are removed.
    """
    some = bool(ids) or any(which[option] is not None for option in _COMMON)
    wanted = _chosen(ids, **which) if some else DeadLetterChoice(limit=which["limit"])
    invocation.confirm(_question(queue, ids, wanted), yes=yes)
    count = carried_out(
        invocation,
        lambda wait: invocation.broker.dead_letters.discard(queue, ids or None, wait=wait, **wanted),
    )
    invocation.result(
        f"removed {count} dead letters of {queue}", queue=queue, state=ShownState.DEAD, removed=count
    )


def _chosen(ids: tuple[str, ...], *, everything: bool, limit: int | None, **cause: Any) -> DeadLetterChoice:
    which = _which_letters(**cause)
    if bool(ids) + bool(which) + everything != 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in _COMMON)
        raise click.UsageError(f"give IDs, or some of {options}, or --all")
    return DeadLetterChoice(**which, limit=limit)  # type: ignore[no-any-return,typeddict-item]


def _which_letters(
    *, newer_than: float | None, older_than: float | None, **cause: str | None
) -> dict[str, Any]:
    """Return what of a choice of dead letters is given."""
    given = {**cause, **_moments(newer_than, older_than)}
    return {name: value for name, value in given.items() if value is not None}


def _moments(newer_than: float | None, older_than: float | None) -> dict[str, float | None]:
    """Return the times from and before which dead letters have died."""
    since, until = (None if ago is None else time() - ago for ago in (newer_than, older_than))
    return {"since": since, "until": until}


def _question(queue: str, ids: tuple[str, ...], chosen: DeadLetterChoice) -> str:
    which = f"{len(ids)}" if ids else "those" if any(chosen.values()) else "all"
    return f"Remove {which} dead letters of queue {queue}?"


def _report(invocation: Invocation, queue: str, to: str | None, redriven: RedriveRow) -> None:
    refused = redriven.refused
    for refusal in refused[:_MOST_SHOWN]:
        invocation.note(f"not redriven: {refusal.text}")
    if len(refused) > _MOST_SHOWN:
        invocation.note(f"and {len(refused) - _MOST_SHOWN} more")
    where = f" into {to}" if to else ""
    text = f"{redriven.moved} dead letters of {queue} redriven{where}, {redriven.left} left"
    invocation.result(text, queue=queue, to=to, **plain(redriven))
