"""``sluicemq schedules``: jobs that are pushed again and again."""

from __future__ import annotations

import sys
from time import time
from typing import Any

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import job_flags, of_push, timespan
from sluicemq.cli.output import Invocation, fields, shown, span
from sluicemq.protocol.options import Option
from sluicemq.protocol.permissions import Action


def _of_runs() -> list[Option]:
    return [option for option in of_push() if option.for_schedules]


@click.group(cls=Noun, default="list")
def schedules() -> None:
    """Push a job again and again, by a cron expression or at intervals."""


@schedules.command()
@click.argument("name")
@click.argument("queue")
@click.argument("payload")
@click.option(
    "--cron",
    metavar="EXPRESSION",
    help="Minute, hour, day of month, month, day of week; or @daily and the like.",
)
@click.option("--timezone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin; else UTC.")
@click.option("--every", type=timespan(above=True), metavar="S", help="Seconds from one run to the next.")
@click.option("--misfire", type=click.Choice(["skip", "one", "all"]), default="one", show_default=True, help="Runs that no broker was there for: which ones are made up for.")  # noqa: E501 # fmt: skip
@job_flags(_of_runs())
@click.pass_obj
def add(
    invocation: Invocation, /, name: str, queue: str, payload: str, *, cron: str | None, timezone: str | None,
    every: float | None, misfire: str, **options: Any,
) -> None:  # fmt: skip
    """Push PAYLOAD to QUEUE at these times, as schedule NAME; replaces a schedule of this name.

    PAYLOAD may be - for stdin.
    """
    if (cron is None) == (every is None):
        raise click.UsageError("give one of --cron and --every")
    if timezone is not None and not cron:
        raise click.UsageError("--timezone needs a --cron")
    body = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    given: Any = {key: value for key, value in options.items() if value is not None}
    row = invocation.broker.sent.schedules.add(
        name,
        queue,
        body,
        cron=cron,
        timezone="UTC" if timezone is None else timezone,
        every=every,
        misfire=misfire,
        **given,
    )
    invocation.result(f"{name} runs next {_when(row['next_at'])}", **row)


@schedules.command(name="list")
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the schedules: when each runs next, and how many jobs it has pushed."""
    rows = invocation.broker.sent.schedules.list()
    none = invocation.none_seen(Action.MANAGE, "schedules")
    invocation.answer({"schedules": rows}, [_readable(row) for row in rows], none)


@schedules.command()
@click.argument("name")
@click.pass_obj
def show(invocation: Invocation, name: str) -> None:
    """Show schedule NAME with all its fields."""
    row = invocation.broker.sent.schedules.get(name)
    invocation.answer(row, fields(_readable(row)))


@schedules.command()
@click.argument("name")
@click.pass_obj
def delete(invocation: Invocation, name: str) -> None:
    """Remove a schedule; jobs that it has pushed stay."""
    invocation.broker.schedules.delete(name)
    invocation.result(f"removed {name}", name=name)


@schedules.command()
@click.argument("name")
@click.pass_obj
def pause(invocation: Invocation, name: str) -> None:
    """Push no jobs of a schedule until it is resumed."""
    invocation.broker.schedules.pause(name)
    invocation.result(f"{name} is paused", name=name, paused=True)


@schedules.command()
@click.argument("name")
@click.pass_obj
def resume(invocation: Invocation, name: str) -> None:
    """Resume a schedule; runs in between are skipped."""
    row = invocation.broker.sent.schedules.resume(name)
    invocation.result(f"{name} runs next {_when(row['next_at'])}", **row)


@schedules.command()
@click.argument("name")
@click.pass_obj
def run(invocation: Invocation, name: str) -> None:
    """Push one job of a schedule now, also while it is paused."""
    job_id = invocation.broker.schedules.run(name)
    invocation.result(job_id, name=name, id=job_id)


def _when(moment: float) -> str:
    return f"at {shown('next_at', moment)} (in {span(max(0.0, moment - time()))})"


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    rest = dict(row)
    every, cron, zone = rest.pop("every", None), rest.pop("cron", ""), rest.pop("timezone", "UTC")
    when = f"every {every:g} s" if every else f"{cron} {'' if zone == 'UTC' else zone}".strip()
    line = {"name": rest.pop("name"), "queue": rest.pop("queue"), "runs": when}
    rest.pop("from_configuration", None)
    options = rest.pop("options", None)
    if rest.get("problem"):
        rest["next_at"] = None
    return {**line, **rest, **({"options": options} if options else {})}
