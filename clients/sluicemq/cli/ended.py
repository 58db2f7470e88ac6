"""``sluicemq dead`` and ``sluicemq done``: jobs that have ended and are kept."""

from __future__ import annotations

from typing import Any

import click

from sluicemq.cli.jobs import limit_option, list_jobs, payload_option, show_job
from sluicemq.cli.output import Session
from sluicemq.cli.tasks import carried_out
from sluicemq.errors import NotFound

_TOLD = 10


@click.group()
def dead() -> None:
    """Look at dead letters, give them another life, or remove them."""


@click.group()
def done() -> None:
    """Look at finished jobs that are kept."""


@dead.command("list")
@click.argument("queue")
@limit_option
@click.pass_obj
def dead_list(session: Session, queue: str, limit: int) -> None:
    """List the dead letters of a QUEUE, oldest first."""
    list_jobs(session, queue, "dead", limit)


@dead.command("show")
@click.argument("queue")
@click.argument("id")
@payload_option
@click.pass_obj
def dead_show(session: Session, queue: str, id: str, *, payload: bool) -> None:  # noqa: A002 - the argument
    """Show one dead letter of a QUEUE with its history."""
    _show(session, queue, id, "dead", payload=payload)


@dead.command()
@click.argument("queue")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--reason", metavar="TEXT", help="Those with TEXT in their last error.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, the oldest.")
@click.option("--to", metavar="OTHER", help="Into another queue.")
@click.pass_obj
def redrive(
    session: Session,
    queue: str,
    ids: tuple[str, ...],
    reason: str | None,
    limit: int | None,
    to: str | None,
    *,
    everything: bool,
) -> None:
    """Make dead letters of a QUEUE ready again.

    These IDs, those with a reason, or --all. Attempts and time to live start anew; the history stays.
    Exits with 1 if an ID can't go.
    """
    if bool(ids) + (reason is not None) + everything != 1:
        raise click.UsageError("give IDs, --reason, or --all")
    with session.client() as client:
        redriven = carried_out(
            session,
            client,
            lambda wait: client.redrive(queue, ids or None, reason=reason, limit=limit, to=to, wait=wait),
        )
    _tell(session, queue, to, redriven)
    if ids and redriven["refused"]:
        click.get_current_context().exit(1)


@dead.command("purge")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def dead_purge(session: Session, queue: str, *, yes: bool) -> None:
    """Remove all dead letters of a QUEUE."""
    if not yes:
        click.confirm(f"Remove all dead letters of queue {queue}?", abort=True, err=True)
    with session.client() as client:
        count = carried_out(session, client, lambda wait: client.purge(queue, "dead", wait=wait))
    session.result(f"removed {count} dead letters of {queue}", queue=queue, state="dead", removed=count)


@done.command("list")
@click.argument("queue")
@limit_option
@click.pass_obj
def done_list(session: Session, queue: str, limit: int) -> None:
    """List the finished jobs of a QUEUE that are kept, oldest first."""
    list_jobs(session, queue, "done", limit)


@done.command("show")
@click.argument("queue")
@click.argument("id")
@payload_option
@click.pass_obj
def done_show(session: Session, queue: str, id: str, *, payload: bool) -> None:  # noqa: A002
    """Show one finished job of a QUEUE with its result and history."""
    _show(session, queue, id, "done", payload=payload)


def _show(session: Session, queue: str, job_id: str, state: str, *, payload: bool) -> None:
    with session.client() as client:
        job = client.show(queue, job_id)
    if job.get("state") != state:
        raise NotFound(f"job {job_id!r} of queue {queue!r} is {job.get('state')}, not {state}")
    show_job(session, queue, job, payload=payload)


def _tell(session: Session, queue: str, to: str | None, redriven: dict[str, Any]) -> None:
    refused = redriven["refused"]
    for _id, _code, text in refused[:_TOLD]:
        session.note(f"not redriven: {text}")
    if len(refused) > _TOLD:
        session.note(f"and {len(refused) - _TOLD} more")
    where = f" into {to}" if to else ""
    text = f"{redriven['moved']} dead letters of {queue} redriven{where}, {redriven['left']} left"
    session.result(text, queue=queue, to=to, **redriven)
