"""``sluicemq workers`` and ``events``: who works at a broker, and what happens to its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any, Final

import click

from sluicemq.cli.output import Session, span

#: Seconds between two questions for events, where the last one brought none.
_LOOK: Final = 0.25
#: Seconds for which is listened without --follow.
_SECONDS: Final = 5.0


@click.command()
@click.argument("queue", required=False)
@click.pass_obj
def workers(session: Session, queue: str | None) -> None:
    """List the workers at this broker, or those of one QUEUE: who, since when, and what each has."""
    with session.client() as client:
        rows = client.workers(queue)
    if session.as_json:
        session.json({"workers": rows})
    elif rows:
        session.table("", [worker_row(each) for each in rows])
    else:
        session.note("no workers" + (f" of {queue}" if queue else ""))


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
@click.option("--queue", metavar="QUEUE", help="Of this queue only.")
@click.option("--follow", "-f", is_flag=True, help="Until Ctrl-C.")
@click.option(
    "--for", "seconds", type=click.FloatRange(0), metavar="S", default=_SECONDS, show_default=True,
    help="For so many seconds, without --follow.",
)  # fmt: skip
@click.pass_obj
def events(session: Session, queue: str | None, seconds: float, *, follow: bool) -> None:
    """Print what happens to jobs at this broker from now on: a JSON object on a line for each event.

    Who reads too slowly, on a busy broker, gets a line {"missed": N} in the place of what was too much.
    """
    end = monotonic() + seconds
    with session.client() as client:
        after = client.events(queue)["after"]
        while follow or monotonic() < end:
            told = client.events(queue, after)
            after = told["after"]
            if told["missed"]:
                session.json({"missed": told["missed"]})
            for each in told["events"]:
                session.json(each)
            if not told["events"]:
                sleep(_LOOK)
