"""Commands that look at queues and act on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import click

from sluicemq.cli_output import Session, span
from sluicemq.errors import NotFound

STATES = ("ready", "scheduled", "waiting", "reserved", "done", "dead")

_state = click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.command()
@click.argument("queue", required=False)
@click.pass_obj
def queues(session: Session, queue: str | None) -> None:
    """List the queues, or one QUEUE, and how many jobs they hold."""
    with session.client() as client:
        rows = [row for row in client.queues() if queue in (None, row["name"])]
    if queue and not rows:
        raise NotFound(f"there is no queue {queue}")
    if session.as_json:
        session.json({"queues": rows})
    elif rows:
        session.table("", rows)
    else:
        session.note("no queues yet")


@click.command()
@click.pass_obj
def stats(session: Session) -> None:
    """Show what the broker tells of itself, its counters and its queues."""
    with session.client() as client:
        figures = client.stats()
    if session.as_json:
        session.json(figures)
        return
    for title, part in figures.items():
        rows = part if isinstance(part, list) else [{"name": key, "value": part[key]} for key in part]
        session.table(title, rows)
        session.result(" ")


@click.command()
@click.argument("queue")
@_state
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.pass_obj
def peek(session: Session, queue: str, state: str, limit: int) -> None:
    """Show the next jobs of a QUEUE without taking them; all that is known of them with --json."""
    with session.client() as client:
        jobs = client.peek(queue, state, limit)
    if session.as_json:
        session.json({"queue": queue, "state": state, "jobs": jobs})
    elif jobs:
        session.table("", _in_short(jobs, state, time()))
    else:
        session.note(f"no {state} jobs in {queue}")


@click.command()
@click.argument("queue")
@_state
@_yes
@click.pass_obj
def purge(session: Session, queue: str, state: str, *, yes: bool) -> None:
    """Remove all jobs of a QUEUE that are in one state."""
    _ask(f"Remove all {state} jobs of queue {queue}?", yes=yes)
    with session.client() as client:
        count = client.purge(queue, state)
    session.result(f"removed {count} {state} jobs of {queue}", queue=queue, state=state, removed=count)


@click.command()
@click.argument("queue")
@_yes
@click.pass_obj
def delete(session: Session, queue: str, *, yes: bool) -> None:
    """Remove a QUEUE with all its jobs."""
    _ask(f"Delete queue {queue} with all its jobs?", yes=yes)
    with session.client() as client:
        count = client.delete(queue)
    session.result(f"deleted {queue} with {count} jobs", queue=queue, removed=count)


@click.command()
@click.argument("queue")
@click.argument("id")
@click.pass_obj
def cancel(session: Session, queue: str, id: str) -> None:  # noqa: A002 - the argument's name
    """Remove one job of a QUEUE that no worker holds."""
    with session.client() as client:
        client.cancel(queue, id)
    session.result(f"cancelled {id}", queue=queue, id=id)


@click.command()
@click.option("--wait", type=float, metavar="S", help="Wait up to S seconds for the broker to come up.")
@click.pass_obj
def ping(session: Session, wait: float | None) -> None:
    """Ask whether the broker is there."""
    with session.client(patient=wait is not None) as client:
        client.ping(session.timeout if wait is None else wait)
        seconds = client.ping(session.timeout)
    text = f"{session.endpoint} answers in {seconds * 1000:.1f} ms"
    session.result(text, endpoint=session.endpoint, seconds=seconds)


def _in_short(jobs: Sequence[Mapping[str, Any]], state: str, now: float) -> list[dict[str, Any]]:
    """What someone wants to know who looks at a queue; columns that hold nothing are left out."""
    rows = [_row(job, state, now) for job in jobs]
    told = {column for row in rows for column, value in row.items() if value not in (None, "", {})}
    return [{column: value for column, value in row.items() if column in told} for row in rows]


def _row(job: Mapping[str, Any], state: str, now: float) -> dict[str, Any]:
    errors = job.get("errors") or [{}]
    created, due = job.get("created_at"), job.get("eligible_at")
    waits = due is not None and due > now
    return {
        "id": job.get("id"),
        "state": job.get("state") if job.get("state") != state else None,
        "attempts": job.get("attempts"),
        "age": None if created is None else span(now - created),
        "due": f"in {span(due - now)}" if due is not None and waits else None,
        "headers": job.get("headers"),
        "payload": job.get("payload"),
        "last error": errors[-1].get("reason"),
    }


def _ask(question: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)
