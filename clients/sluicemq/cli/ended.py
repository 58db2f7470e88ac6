"""``sluicemq dead`` and ``sluicemq done``: jobs that have ended and are kept."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any, Final, TypeVar

import click

from sluicemq.cli.jobs import limit_option, list_jobs, newest_option, payload_option, show_job
from sluicemq.cli.options import timespan
from sluicemq.cli.output import Invocation
from sluicemq.cli.tasks import carried_out
from sluicemq.dead_letters import DeadLetterChoice
from sluicemq.protocol.errors import NotFound
from sluicemq.protocol.rows import RedriveRow, plain
from sluicemq.protocol.wire import ShownState

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST_SHOWN = 10
_SECONDS: Final = timespan()
#: Options that choose dead letters by their properties.
_COMMON: Final = ("reason", "newer_than", "older_than")


@click.group()
def dead() -> None:
    """Look at dead letters, make them ready again, or remove them."""


@click.group()
def done() -> None:
    """Look at finished jobs that are kept."""


@dead.command("list")
@click.argument("queue")
@limit_option
@newest_option
@click.pass_obj
def dead_list(invocation: Invocation, queue: str, limit: int, *, newest: bool) -> None:
    """List the dead letters of a QUEUE, oldest first."""
    list_jobs(invocation, queue, ShownState.DEAD, limit, newest=newest)


@dead.command("show")
@click.argument("queue")
@click.argument("id")
@payload_option
@click.pass_obj
def dead_show(invocation: Invocation, queue: str, id: str, *, payload: bool) -> None:  # noqa: A002 - the argument
    """Show one dead letter of a QUEUE with its history."""
    _show(invocation, queue, id, ShownState.DEAD, payload=payload)


def _which(function: _Function) -> _Function:
    """Add the arguments and options that choose dead letters."""
    for option in (
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, the oldest."),
        click.option("--older-than", type=_SECONDS, metavar="S", help="Those dead for S seconds or longer."),
        click.option("--newer-than", type=_SECONDS, metavar="S", help="Those dead for S seconds at most."),
        click.option("--reason", metavar="TEXT", help="Those with TEXT in their last error."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.argument("queue"),
    ):
        function = option(function)
    return function


@dead.command()
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


@dead.command("purge")
@_which
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def dead_purge(
    invocation: Invocation, /, queue: str, ids: tuple[str, ...], *, yes: bool, **which: Any
) -> None:
    """Remove dead letters of a QUEUE.

    Choose them by IDs, by a reason or a time; without any of these, all of them are removed.
    """
    some = bool(ids) or any(which[each] is not None for each in _COMMON)
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


@done.command("list")
@click.argument("queue")
@limit_option
@newest_option
@click.pass_obj
def done_list(invocation: Invocation, queue: str, limit: int, *, newest: bool) -> None:
    """List the finished jobs of a QUEUE that are kept, oldest first."""
    list_jobs(invocation, queue, ShownState.DONE, limit, newest=newest)


@done.command("show")
@click.argument("queue")
@click.argument("id")
@payload_option
@click.pass_obj
def done_show(invocation: Invocation, queue: str, id: str, *, payload: bool) -> None:  # noqa: A002
    """Show one finished job of a QUEUE with its result and history."""
    _show(invocation, queue, id, ShownState.DONE, payload=payload)


def _show(invocation: Invocation, queue: str, job_id: str, state: str, *, payload: bool) -> None:
    with invocation.client() as client:
        job = client.sent.jobs.get(queue, job_id)
    if job.get("state") != state:
        raise NotFound(f"job {job_id!r} of queue {queue!r} is {job.get('state')}, not {state}")
    show_job(invocation, queue, job, payload=payload)


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
    since, until = (None if ago is None else time() - ago for ago in (newer_than, older_than))
    return DeadLetterChoice(reason=reason, since=since, until=until, limit=limit)


def _question(queue: str, ids: tuple[str, ...], chosen: DeadLetterChoice) -> str:
    which = f"{len(ids)}" if ids else "those" if any(chosen.values()) else "all"
    return f"Remove {which} dead letters of queue {queue}?"


def _report(invocation: Invocation, queue: str, to: str | None, redriven: RedriveRow) -> None:
    refused = redriven.refused
    for each in refused[:_MOST_SHOWN]:
        invocation.note(f"not redriven: {each.text}")
    if len(refused) > _MOST_SHOWN:
        invocation.note(f"and {len(refused) - _MOST_SHOWN} more")
    where = f" into {to}" if to else ""
    text = f"{redriven.moved} dead letters of {queue} redriven{where}, {redriven.left} left"
    invocation.result(text, queue=queue, to=to, **plain(redriven))
