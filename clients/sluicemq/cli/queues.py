"""Commands that look at queues, pause them, and empty them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

import click

from sluicemq import wire
from sluicemq.cli.jobs import STATES
from sluicemq.cli.output import Session
from sluicemq.cli.queue_table import queue_rows
from sluicemq.cli.reached import NO_STORE, store_problem
from sluicemq.cli.tasks import carried_out

_state = click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
_delivery = click.option("--delivery", is_flag=True, help="Handing out jobs; the default.")
_intake = click.option("--intake", is_flag=True, help="Taking jobs in.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.command()
@click.argument("queue", required=False)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.2), metavar="S", default=2.0, show_default=True)
@click.pass_obj
def queues(session: Session, queue: str | None, interval: float, *, watch: bool) -> None:
    """List the queues, or one QUEUE, and how many jobs they hold."""
    with session.client() as client:

        def rows() -> list[dict[str, Any]]:
            return client.queues() if queue is None else [client.queue(queue)]

        if watch:
            _watch(session, rows, interval)
        else:
            _list(session, rows())


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
            queue_rows(part)
            if title == "queues"
            else part
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


def _list(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    if session.as_json:
        session.json({"queues": rows})
    elif rows:
        session.table("", queue_rows(rows))
    else:
        session.note("no queues yet")


def _watch(session: Session, rows: Callable[[], Sequence[dict[str, Any]]], interval: float) -> None:
    """Over and over in one place of a terminal; elsewhere, and as JSON, one after the other."""
    if session.as_json or not session.out.is_terminal:
        while True:
            _list(session, rows())
            sleep(interval)
    from rich.live import Live  # noqa: PLC0415 - slow to load, and most look once

    with Live(console=session.out, auto_refresh=False) as live:
        while True:
            live.update(session.tabled("", queue_rows(rows())), refresh=True)
            sleep(interval)


def _ask(question: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)
