"""``sluicemq workers``, ``kinds`` and ``events``: workers, kinds of jobs, and what happens to jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any, Final

import click

from sluicemq.cli.everywhere import at_each, unanswered
from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import timespan
from sluicemq.cli.output import CommandClient, Invocation, none_seen, span, took
from sluicemq.protocol.permissions import Action

#: Seconds between two questions for events, if the last one brought none.
_LOOK: Final = 0.25
#: Seconds that events are shown without --follow.
_SECONDS: Final = 5.0


@click.group(cls=Noun, default="list")
def workers() -> None:
    """Look at the workers at brokers."""


@click.group(cls=Noun, default="list")
def kinds() -> None:
    """Look at the kinds of jobs, such as the tasks of a program."""


@click.group(cls=Noun, default="read")
def events() -> None:
    """Look at what happens to jobs at a broker."""


@workers.command("list")
@click.argument("queue", required=False)
@click.pass_obj
def list_(invocation: Invocation, queue: str | None) -> None:
    """List the workers at the brokers of all endpoints, or those of one QUEUE, with their jobs.

    A broker that does not answer is named.
    """
    _list(invocation, "workers", queue, worker_row)


@workers.command()
@click.argument("name")
@click.pass_obj
def quiet(invocation: Invocation, name: str) -> None:
    """Give no more jobs to the worker NAME, at all endpoints, until it connects again."""
    _order(invocation, "quiet", name)


@workers.command()
@click.argument("name")
@click.pass_obj
def stop(invocation: Invocation, name: str) -> None:
    """End the worker NAME: it gets no more jobs, and ends what it has begun.

    Plain workers, and those of an older library, only get no more jobs.
    """
    _order(invocation, "stop", name)


def _order(invocation: Invocation, action: str, name: str) -> None:
    answers = at_each(invocation, lambda client: getattr(client.workers, action)(name))
    missing = unanswered(invocation, answers)
    count = sum(answer.value or 0 for answer in answers)
    if not count:
        raise click.ClickException(f"no worker is called {name!r}: see `sluicemq workers`")
    text = f"{name}: {'stops' if action == 'stop' else 'gets no more jobs'}, of {count} queues"
    invocation.result(text, name=name, queues=count, unanswered=missing)


@kinds.command("list")
@click.argument("queue", required=False)
@click.pass_obj
def list_kinds(invocation: Invocation, queue: str | None) -> None:
    """List the kinds of jobs at the brokers of all endpoints, or those of one QUEUE, with their figures.

    Each broker counts since its start. Times are those at workers.
    """
    _list(invocation, "kinds", queue, kind_row)


def _list(
    invocation: Invocation, noun: str, queue: str | None, row: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> None:
    asked: list[CommandClient] = []

    def ask(client: CommandClient) -> list[dict[str, Any]]:
        asked.append(client)
        rows: list[dict[str, Any]] = getattr(client.sent, noun).list(queue)
        return rows

    answers = at_each(invocation, ask)
    missing = unanswered(invocation, answers)
    rows = [row for answer in answers for row in answer.value or ()]
    if invocation.as_json:
        invocation.json({noun: rows, "unanswered": missing})
    elif rows:
        named = len(answers) > 1
        invocation.table("", [{**_broker(found, shown=named), **row(found)} for found in rows])
    else:
        none = f"no {noun}" + (f" of {queue}" if queue else "")
        sees = none_seen(asked[0], Action.READ, noun, none) if asked else none
        invocation.note(sees)


def one_of(named: str | None, queue: str | None) -> str | None:
    """Return the queue, given in either way; raises UsageError for both."""
    if named is not None and queue is not None:
        raise click.UsageError("give one of QUEUE and --queue")
    return queue if named is None else named


def _broker(worker: Mapping[str, Any], *, shown: bool) -> dict[str, Any]:
    return {"broker": worker.get("broker")} if shown else {}


def worker_row(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker as a line of a table; ``doing``: the job that it has for longest, stuck ones first."""
    jobs, stuck = worker["jobs"], worker.get("stuck") or ()
    longest = max(stuck or jobs, key=lambda found: float(found["seconds"]), default=None)
    doing = None if longest is None else f"{longest['id']} {longest.get('kind') or ''}".rstrip()
    state = "stuck" if stuck else "overdue" if worker["overdue"] else "quiet" if worker.get("quiet") else None
    return {
        "queue": worker["queue"],
        "worker": worker["name"],
        "door": worker["door"],
        "since": span(worker["connected"]),
        "has": f"{worker['in_flight']}/{worker['prefetch']}",
        "longest": None if longest is None else span(longest["seconds"]),
        "doing": doing,
        **({"state": state} if state else {}),
    }


def kind_row(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kind as a line of a table."""
    counts = {name: kind[name] for name in ("queue", "kind", "pushed")}
    times = {name: _took(kind[name]) for name in ("waited", "worked", "p95", "p99")}
    failed = kind["rolled_back"] + kind["rejected"]
    return {**counts, "done": kind["committed"], "failed": failed, "dead": kind["dead"], **times}


def _took(seconds: float | None) -> str | None:
    return None if seconds is None else took(seconds)


_queue_option = click.option("--queue", metavar="QUEUE", help="Another way to give QUEUE.", hidden=True)


@events.command()
@click.argument("named", metavar="[QUEUE]", required=False)
@_queue_option
@click.option("--follow", "-f", is_flag=True, help="Until Ctrl-C.", hidden=True)
@click.option(
    "--for", "seconds", type=timespan(), metavar="S", default=_SECONDS, show_default=True,
    help="For S seconds.",
)  # fmt: skip
@click.pass_obj
def read(
    invocation: Invocation, named: str | None, queue: str | None, seconds: float, *, follow: bool
) -> None:
    """Print what happens to jobs at this broker, or in one QUEUE, from now on, for a few seconds.

    A JSON line for each event. If events come faster than they are read, a line {"missed": N} stands for
    those that were dropped.
    """
    _print(invocation, one_of(named, queue), None if follow else monotonic() + seconds)


@events.command("follow")
@click.argument("named", metavar="[QUEUE]", required=False)
@click.pass_obj
def follow_(invocation: Invocation, named: str | None) -> None:
    """Print what happens to jobs at this broker, or in one QUEUE, until Ctrl-C, as `events read` does."""
    _print(invocation, named, None)


def _print(invocation: Invocation, queue: str | None, end: float | None) -> None:
    after = invocation.broker.sent.events.read(queue)["after"]
    while end is None or monotonic() < end:
        answer = invocation.broker.sent.events.read(queue, after)
        after = answer["after"]
        if answer["missed"]:
            invocation.json({"missed": answer["missed"]})
        for event in sorted(answer["events"], key=lambda event: float(event["at"])):
            invocation.json(event)  # a worker may have a job before its push is answered
        if not answer["events"]:
            sleep(_LOOK)
