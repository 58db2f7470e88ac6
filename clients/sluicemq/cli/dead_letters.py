"""``sluicemq dead-letters``: jobs that have failed for good."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any, Final, TypeVar

import click

from sluicemq.cli.jobs import limit_option, list_jobs, newest_option
from sluicemq.cli.nouns import Noun
from sluicemq.cli.operations import carried_out
from sluicemq.cli.options import timespan
from sluicemq.cli.output import Invocation, span
from sluicemq.dead_letters import DeadLetterChoice
from sluicemq.protocol.rows import RedriveRow, plain
from sluicemq.protocol.wire import ShownState

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST_SHOWN = 10
_SECONDS: Final = timespan()
#: Options that choose dead letters by their properties.
_COMMON: Final = ("reason", "newer_than", "older_than")


@click.group(cls=Noun)
def dead_letters() -> None:
    """Look at dead letters, make them ready again, or remove them."""


@dead_letters.command("list")
@click.argument("queue")
@limit_option
@newest_option
@click.pass_obj
def list_(invocation: Invocation, queue: str, limit: int, *, newest: bool) -> None:
    """List the dead letters of a QUEUE, oldest first."""
    list_jobs(invocation, queue, ShownState.DEAD, limit, newest=newest)


def _of_time(function: _Function) -> _Function:
    """Add the options that choose dead letters by the time of their death."""
    for option in (
        click.option("--older-than", type=_SECONDS, metavar="S", help="Those dead for S seconds or longer."),
        click.option("--newer-than", type=_SECONDS, metavar="S", help="Those dead for S seconds at most."),
    ):
        function = option(function)
    return function


@dead_letters.command()
@click.argument("queue")
@_of_time
@click.option("--reason", metavar="TEXT", help="Those with TEXT in their last error.")
@click.pass_obj
def count(invocation: Invocation, /, queue: str, *, reason: str | None, **times: float | None) -> None:
    """Count the dead letters of a QUEUE."""
    with invocation.client() as client:
        found = client.dead_letters.count(queue, reason=reason, **_moments(**times))
    about = "" if found.exact else "about "
    invocation.result(f"{about}{found.count}", queue=queue, count=found.count, exact=found.exact)


@dead_letters.command()
@click.argument("queue")
@_of_time
@click.pass_obj
def by_reason(invocation: Invocation, /, queue: str, **times: float | None) -> None:
    """Show why the latest dead letters of a QUEUE died, the most frequent reasons first."""
    with invocation.client() as client:
        found = plain(client.dead_letters.by_reason(queue, **_moments(**times)))
    if invocation.as_json:
        invocation.json({"queue": queue, "reasons": found})
    elif found:
        invocation.table("", [{"count": error["count"], "reason": error["reason"]} for error in found])
    else:
        invocation.note(f"no dead letters in {queue}")


@dead_letters.command()
@click.argument("queue", required=False)
@click.pass_obj
def by_error(invocation: Invocation, queue: str | None) -> None:
    """Show the errors of the latest dead letters, of a QUEUE or of all queues: what was raised, and where."""
    with invocation.client() as client:
        found = plain(client.dead_letters.by_error(queue))
    if invocation.as_json:
        invocation.json(found)
    elif found["errors"]:
        invocation.table("", [_error_row(error) for error in found["errors"]])
        if found["looked"] < found["dead"]:
            invocation.note(f"{found['looked']} of {found['dead']} dead letters were looked at")
    else:
        invocation.note(f"no dead letters{f' in {queue}' if queue else ''}")


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


def _which(function: _Function) -> _Function:
    """Add the arguments and options that choose dead letters."""
    for option in (
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, the oldest."),
        _of_time,
        click.option("--reason", metavar="TEXT", help="Those with TEXT in their last error."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.argument("queue"),
    ):
        function = option(function)
    return function


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
    with invocation.client() as client:
        redriven = carried_out(
            invocation,
            lambda wait: client.dead_letters.redrive(queue, ids or None, to=to, wait=wait, **wanted),
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
    if not yes:
        click.confirm(_question(queue, ids, wanted), abort=True, err=True)
    with invocation.client() as client:
        count = carried_out(
            invocation, lambda wait: client.dead_letters.discard(queue, ids or None, wait=wait, **wanted)
        )
    invocation.result(
        f"removed {count} dead letters of {queue}", queue=queue, state=ShownState.DEAD, removed=count
    )


def _chosen(
    ids: tuple[str, ...],
    *,
    everything: bool,
    reason: str | None,
    newer_than: float | None,
    older_than: float | None,
    limit: int | None,
) -> DeadLetterChoice:
    common = reason is not None or newer_than is not None or older_than is not None
    if bool(ids) + common + everything != 1:
        raise click.UsageError("give IDs, or --reason, --newer-than and --older-than, or --all")
    times = _moments(newer_than, older_than)
    return DeadLetterChoice(reason=reason, limit=limit, since=times["since"], until=times["until"])


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
