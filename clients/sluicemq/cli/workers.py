"""``sluicemq workers`` and ``events``: who works at a broker, and what happens to its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any, Final

import click

from sluicemq.cli.options import timespan
from sluicemq.cli.output import Invocation, span

#: Seconds between two questions for events, where the last one brought none.
_LOOK: Final = 0.25
#: Seconds for which is listened without --follow.
_SECONDS: Final = 5.0


@click.command()
@click.argument("queue", required=False)
@click.pass_obj
def workers(invocation: Invocation, queue: str | None) -> None:
    """List the workers at this broker, or those of one QUEUE: who, since when, and what each has."""
    with invocation.client() as client:
        rows = client.workers(queue)
    if invocation.as_json:
        invocation.json({"workers": rows})
    elif rows:
        invocation.table("", [worker_row(each) for each in rows])
    else:
        invocation.note("no workers" + (f" of {queue}" if queue else ""))


def one_of(named: str | None, queue: str | None) -> str | None:
    """The queue, however it was named; raises UsageError for two."""
    if named is not None and queue is not None:
        raise click.UsageError("give one of QUEUE and --queue")
    return queue if named is None else named


def worker_row(worker: Mapping[str, Any]) -> dict[str, Any]:
    """A worker as a line of a table."""
    jobs = worker["jobs"]
    longest = max((each["seconds"] for each in jobs), default=None)
    return {
        "queue": worker["queue"],
        "worker": worker["name"],
        "door": worker["door"],
        "since": span(worker["connected"]),
        "has": f"{worker['in_flight']}/{worker['prefetch']}",
        "longest": None if longest is None else span(longest),
    }


@click.command()
@click.argument("named", metavar="[QUEUE]", required=False)
@click.option("--queue", metavar="QUEUE", help="The same as QUEUE.")
@click.option("--follow", "-f", is_flag=True, help="Until Ctrl-C.")
@click.option(
    "--for", "seconds", type=timespan(), metavar="S", default=_SECONDS, show_default=True,
    help="For so many seconds, without --follow.",
)  # fmt: skip
@click.pass_obj
def events(
    invocation: Invocation, named: str | None, queue: str | None, seconds: float, *, follow: bool
) -> None:
    """Print what happens to jobs at this broker, or in one QUEUE, from now on: a JSON line for each event.

    Who reads too slowly, on a busy broker, gets a line {"missed": N} in the place of what was too much.
    """
    queue = one_of(named, queue)
    with invocation.client() as client:
        after = client.events(queue)["after"]
        end = monotonic() + seconds
        while follow or monotonic() < end:
            told = client.events(queue, after)
            after = told["after"]
            if told["missed"]:
                invocation.json({"missed": told["missed"]})
            for each in sorted(told["events"], key=lambda each: float(each["at"])):
                invocation.json(each)  # a job may be with its worker before its push is answered
            if not told["events"]:
                sleep(_LOOK)
