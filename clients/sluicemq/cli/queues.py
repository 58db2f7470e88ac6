"""Commands that look at queues, pause them, and empty them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import sleep, time
from typing import Any, Final

import click

from sluicemq.cli import queue_settings
from sluicemq.cli.jobs import STATES
from sluicemq.cli.nouns import Noun
from sluicemq.cli.operations import carried_out
from sluicemq.cli.options import timespan
from sluicemq.cli.output import CommandClient, Invocation, fields, none_seen, span
from sluicemq.cli.queue_table import queue_rows
from sluicemq.cli.reached import NO_STORE, counted, last_counts, store_problem
from sluicemq.cli.workers import kind_row, worker_row
from sluicemq.protocol import wire
from sluicemq.protocol.enums import Flow, JobState
from sluicemq.protocol.errors import BadVerbError, TimeoutError, UnavailableError
from sluicemq.protocol.permissions import Action

_state = click.option(
    "--state", type=click.Choice(STATES), default=wire.ShownState.READY.value, show_default=True
)
_delivery = click.option("--delivery", is_flag=True, help="The delivery of jobs to workers; the default.")
_intake = click.option("--intake", is_flag=True, help="The intake of new jobs.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(cls=Noun, default="list")
def queues() -> None:
    """Look at queues, pause them, empty them, change their settings.

    Without a verb: list them.
    """


@queues.command("list")
@click.argument("queue", required=False)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--interval", type=timespan(0.2), metavar="S", default=2.0, show_default=True)
@click.pass_obj
def list_(invocation: Invocation, queue: str | None, interval: float, *, watch: bool) -> None:
    """List the queues, or one QUEUE, and how many jobs they have."""
    client = invocation.broker
    problem = ""

    def rows() -> list[dict[str, Any]]:
        nonlocal problem
        try:
            found, problem = counted(client, queue), ""
        except (TimeoutError, UnavailableError) as error:
            found, problem = last_counts(client, error)
            invocation.note(f"store: {problem}; this was counted before")
        return [row for row in found if queue in (None, row["name"])]

    if watch:
        _watch(invocation, rows, interval)
    else:
        if not _listed(invocation, rows()):
            invocation.note(none_seen(client, Action.READ, "queues"))
        if problem:
            click.get_current_context().exit(NO_STORE)


@queues.command()
@click.argument("queue")
@click.pass_obj
def show(invocation: Invocation, queue: str) -> None:
    """Show one QUEUE, counted now, with its settings, workers, kinds of jobs, errors, and who waits."""
    found = invocation.broker.sent.queues.get(queue)
    parts = _parts(invocation.broker, queue)
    if invocation.as_json:
        invocation.json({**found, **parts})
        return
    invocation.table("", fields(found))
    for name, row in _ROWS.items():
        if rows := [row(part) for part in parts[name]]:
            invocation.result(" ")
            invocation.table(name, rows)


def _parts(client: CommandClient, queue: str) -> dict[str, list[dict[str, Any]]]:
    """Return what belongs to a queue: settings that are not the default, workers, errors, who waits."""
    settings = client.sent.queues.settings(queue)["settings"]
    parts: dict[str, list[dict[str, Any]]] = {
        "settings": [setting for setting in settings if setting["source"] != "default"],
        "workers": client.sent.workers.list(queue),
        "kinds": [],
        "errors": [],
        "tenants": [],
        "groups": [],
    }
    with suppress(BadVerbError):  # of a broker of an older version
        parts["kinds"] = client.sent.kinds.list(queue)
        parts["errors"] = client.sent.dead_letters.by_error(queue)["errors"]
        backlog = client.sent.queues.backlog(queue)
        parts |= {name: [row for row in backlog[name] if row["name"]] for name in ("tenants", "groups")}
    return parts


def _waiting(row: Mapping[str, Any]) -> dict[str, Any]:
    oldest = None if row["oldest"] is None else span(time() - row["oldest"])
    return {"name": row["name"], "wait": row["jobs"], "oldest": oldest, "held back": row["held_back"] or None}


_ROWS: Final[dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "settings": lambda row: {name: row[name] for name in ("key", "value", "source")},
    "workers": worker_row,
    "kinds": kind_row,
    "errors": lambda row: {
        "count": row["count"],
        "error": row["type"] or row["reason"],
        "place": row["place"],
    },
    "tenants": _waiting,
    "groups": _waiting,
}


@queues.command()
@click.argument("queue")
@click.option("--for", "seconds", type=timespan(), metavar="S", help="S seconds at most; else for ever.")
@click.pass_obj
def wait_until_empty(invocation: Invocation, queue: str, seconds: float | None) -> None:
    """Wait until a QUEUE has no job to do: none ready, scheduled, waiting or reserved.

    Exits with 1 if it has some after S seconds.
    """
    try:
        invocation.broker.queues.wait_until_empty(queue, seconds)
    except TimeoutError as error:
        if seconds is None or store_problem(invocation.broker.health().store):
            raise
        invocation.error(error)
        click.get_current_context().exit(1)
    invocation.result(f"{queue} is empty", queue=queue)


@click.command()
@click.pass_obj
def stats(invocation: Invocation) -> None:
    """Show the state of the broker, its counters and its queues."""
    figures = invocation.broker.sent.stats()
    if not figures.get("queues"):
        invocation.note(none_seen(invocation.broker, Action.READ, "queues"))
    if invocation.as_json:
        invocation.json(figures)
        return
    if problem := store_problem(figures.get("broker", {}).get("store")):
        invocation.note(f"store: {problem}; the counts of the queues are older")
    for title, part in figures.items():
        rows = part if isinstance(part, list) else fields(part)
        invocation.table(title, queue_rows(part) if title == "queues" else rows)
        invocation.result(" ")


@queues.command()
@click.argument("queue")
@_state
@_yes
@click.pass_obj
def purge(invocation: Invocation, queue: str, state: str, *, yes: bool) -> None:
    """Remove all jobs of a QUEUE that are in one state."""
    invocation.confirm(f"Remove all {state} jobs of queue {queue}?", yes=yes)
    count = carried_out(
        invocation, lambda wait: invocation.broker.queues.purge(queue, JobState(state), wait=wait)
    )
    invocation.result(f"removed {count} {state} jobs of {queue}", queue=queue, state=state, removed=count)


@queues.command()
@click.argument("queue")
@_yes
@click.pass_obj
def delete(invocation: Invocation, queue: str, *, yes: bool) -> None:
    """Remove a QUEUE with all its jobs."""
    invocation.confirm(f"Delete queue {queue} with all its jobs?", yes=yes)
    count = carried_out(invocation, lambda wait: invocation.broker.queues.delete(queue, wait=wait))
    invocation.result(f"deleted {queue} with {count} jobs", queue=queue, removed=count)


@queues.command()
@click.argument("queue")
@_delivery
@_intake
@click.pass_obj
def pause(invocation: Invocation, queue: str, *, delivery: bool, intake: bool) -> None:
    """Pause the delivery of a QUEUE, or its intake, for all brokers, until it is resumed.

    Paused delivery: workers get no jobs, running ones go on. Paused intake: pushes are refused, and plain
    PUSH producers block.
    """
    for what in _chosen(delivery=delivery, intake=intake):
        paused = invocation.broker.queues.pause(queue, Flow(what))
    invocation.result(f"paused in {queue}: {' and '.join(paused)}", queue=queue, paused=paused)


@queues.command()
@click.argument("queue")
@_delivery
@_intake
@click.pass_obj
def resume(invocation: Invocation, queue: str, *, delivery: bool, intake: bool) -> None:
    """Resume the delivery of a QUEUE, or its intake."""
    resumed = _chosen(delivery=delivery, intake=intake)
    for what in resumed:
        paused = invocation.broker.queues.resume(queue, Flow(what))
    still = f"; still paused: {' and '.join(paused)}" if paused else ""
    invocation.result(f"resumed in {queue}: {' and '.join(resumed)}{still}", queue=queue, paused=paused)


@click.command()
@click.option("--wait", type=timespan(), metavar="S", help="Wait up to S seconds for the broker to come up.")
@click.option("--http", "door", metavar="ADDRESS", help="Ask /readyz of this HTTP door, which needs no key.")
@click.pass_obj
def ping(invocation: Invocation, wait: float | None, door: str | None) -> None:
    """Check whether the broker answers, and its MongoDB: exit code 4 if MongoDB does not."""
    if door is not None:
        _ask_readyz(invocation, door, wait or 0.0)
        return
    with invocation.client(patient=wait is not None) as client:
        client.ping(invocation.timeout if wait is None else wait)
        seconds = client.ping(invocation.timeout)
        health = client.sent.health()
        endpoint = client.connected_to or invocation.endpoint
    problem = store_problem(health.get("store"))
    state = f"; store: {problem or wire.STORE_OK}" if health else ""
    text = f"{endpoint} answers in {seconds * 1000:.1f} ms{state}"
    invocation.result(text, endpoint=endpoint, seconds=seconds, **health)
    if problem:
        click.get_current_context().exit(NO_STORE)


def _ask_readyz(invocation: Invocation, door: str, wait: float) -> None:
    from sluicemq.cli.readyz import missing, readiness  # noqa: PLC0415 - HTTP is for this command alone

    try:
        answer = readiness(door, invocation.timeout, wait)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    problem = missing(answer)
    text = f"{door} is not ready: {problem}" if problem else f"{door} is ready"
    invocation.result(text, http=door, **answer)
    if problem:
        click.get_current_context().exit(NO_STORE)


def _chosen(*, delivery: bool, intake: bool) -> list[str]:
    given = {wire.DELIVERY: delivery or not intake, wire.INTAKE: intake}
    return [what for what, chosen in given.items() if chosen]


def _listed(invocation: Invocation, rows: Sequence[dict[str, Any]]) -> bool:
    """Show the rows; returns whether there are any."""
    if invocation.as_json:
        invocation.json({"queues": rows})
    elif rows:
        invocation.table("", queue_rows(rows))
    return bool(rows)


def _watch(invocation: Invocation, rows: Callable[[], Sequence[dict[str, Any]]], interval: float) -> None:
    """Show it again and again, in one place of a terminal; elsewhere, and as JSON, one after the other."""
    if invocation.as_json or not invocation.out.is_terminal:
        while True:
            _listed(invocation, rows())
            sleep(interval)
    from rich.live import Live  # noqa: PLC0415 - slow to load, and most calls look once

    with Live(console=invocation.out, auto_refresh=False) as live:
        while True:
            live.update(invocation.tabled("", queue_rows(rows())), refresh=True)
            sleep(interval)


queue_settings.add_to(queues)
