"""Commands that look at queues, pause them, and empty them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from sluicemq import wire
from sluicemq.cli.jobs import STATES
from sluicemq.cli.output import Session, span
from sluicemq.cli.reached import NO_STORE, store_problem
from sluicemq.cli.tasks import carried_out

_COUNTS = ("ready", "scheduled", "reserved", "done", "dead")
#: What a broker tells of a queue that is no column of its own.
_NO_COLUMN = ("exact", "estimates", "counted_ago", "oldest_ready_age", "rates")

_state = click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
_delivery = click.option("--delivery", is_flag=True, help="Handing out jobs; the default.")
_intake = click.option("--intake", is_flag=True, help="Taking jobs in.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.command()
@click.argument("queue", required=False)
@click.pass_obj
def queues(session: Session, queue: str | None) -> None:
    """List the queues, or one QUEUE, and how many jobs they hold."""
    with session.client() as client:
        rows = client.queues() if queue is None else [client.queue(queue)]
    if session.as_json:
        session.json({"queues": rows})
    elif rows:
        session.table("", [_readable(row) for row in rows])
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
    if problem := store_problem(figures.get("broker", {})):
        session.note(f"store: {problem}; the counts of the queues are older")
    for title, part in figures.items():
        rows = (
            [_readable(row) for row in part]
            if isinstance(part, list)
            else [{"name": key, "value": part[key]} for key in part]
        )
        session.table(title, rows)
        session.result(" ")


@click.command()
@click.argument("queue")
@_state
@_yes
@click.pass_obj
def purge(session: Session, queue: str, state: str, *, yes: bool) -> None:
    """Remove all jobs of a QUEUE that are in one state."""
    _ask(f"Remove all {state} jobs of queue {queue}?", yes=yes)
    with session.client() as client:
        count = carried_out(session, client, lambda wait: client.purge(queue, state, wait=wait))
    session.result(f"removed {count} {state} jobs of {queue}", queue=queue, state=state, removed=count)


@click.command()
@click.argument("queue")
@_yes
@click.pass_obj
def delete(session: Session, queue: str, *, yes: bool) -> None:
    """Remove a QUEUE with all its jobs."""
    _ask(f"Delete queue {queue} with all its jobs?", yes=yes)
    with session.client() as client:
        count = carried_out(session, client, lambda wait: client.delete(queue, wait=wait))
    session.result(f"deleted {queue} with {count} jobs", queue=queue, removed=count)


@click.command()
@click.argument("queue")
@_delivery
@_intake
@click.pass_obj
def pause(session: Session, queue: str, *, delivery: bool, intake: bool) -> None:
    """Stop the delivery of a QUEUE, or its intake, for all brokers, until it is resumed.

    Paused delivery: workers get no jobs, running ones go on. Paused intake: pushes are refused, and
    plain PUSH producers block.
    """
    with session.client() as client:
        for what in _chosen(delivery=delivery, intake=intake):
            paused = client.pause(queue, what)
    session.result(f"paused in {queue}: {' and '.join(paused)}", queue=queue, paused=paused)


@click.command()
@click.argument("queue")
@_delivery
@_intake
@click.pass_obj
def resume(session: Session, queue: str, *, delivery: bool, intake: bool) -> None:
    """Let the delivery of a QUEUE, or its intake, go on."""
    resumed = _chosen(delivery=delivery, intake=intake)
    with session.client() as client:
        for what in resumed:
            paused = client.resume(queue, what)
    still = f"; still paused: {' and '.join(paused)}" if paused else ""
    session.result(f"resumed in {queue}: {' and '.join(resumed)}{still}", queue=queue, paused=paused)


@click.command()
@click.option("--wait", type=float, metavar="S", help="Wait up to S seconds for the broker to come up.")
@click.pass_obj
def ping(session: Session, wait: float | None) -> None:
    """Ask whether the broker is there, and its MongoDB: exit code 4 if that does not answer."""
    with session.client(patient=wait is not None) as client:
        client.ping(session.timeout if wait is None else wait)
        seconds = client.ping(session.timeout)
        health = client.health()
    problem = store_problem(health)
    state = f"; store: {problem or wire.STORE_OK}" if health else ""
    text = f"{session.endpoint} answers in {seconds * 1000:.1f} ms{state}"
    session.result(text, endpoint=session.endpoint, seconds=seconds, **health)
    if problem:
        click.get_current_context().exit(NO_STORE)


def _chosen(*, delivery: bool, intake: bool) -> list[str]:
    given = {wire.DELIVERY: delivery or not intake, wire.INTAKE: intake}
    return [what for what, chosen in given.items() if chosen]


class _About(int):
    """A count that is an estimate."""

    def __str__(self) -> str:
        return f"~{int(self)}"


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """One queue as a line of a table; what a newer broker tells stands at its end."""
    rest = {key: value for key, value in row.items() if key not in _NO_COLUMN}
    line = {key: rest.pop(key) for key in ("name", *_COUNTS) if key in rest}
    line |= {key: _About(line[key]) for key in row.get("estimates", ()) if key in line}
    if "oldest_ready_age" in row:
        age = row["oldest_ready_age"]
        line["oldest"] = None if age is None else span(age)
    if "rates" in row:
        line |= {"in/s": round(row["rates"]["pushed"], 1), "out/s": round(row["rates"]["committed"], 1)}
    paused = {"paused": ", ".join(rest.pop("paused")) or None} if "paused" in rest else {}
    return {**line, **rest, **paused}


def _ask(question: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)
