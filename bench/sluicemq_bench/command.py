"""``sluicemq bench``: how fast a broker is on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluicemq.cli.options import Ruled, timespan
from sluicemq.cli.output import Invocation
from sluicemq.protocol.rules import number
from sluicemq.transport.sources import VARIABLES
from sluicemq_bench import watched
from sluicemq_bench.access import use_only
from sluicemq_bench.capacity_command import plan as plan_command
from sluicemq_bench.plan import ACKS, DEVICES, DOORS, SCENARIOS, planned

if TYPE_CHECKING:
    from sluicemq_bench.outcome import Outcome
    from sluicemq_bench.streams import StreamOutcome

_FORMATS = (".svg", ".png")


def _meanings(words: dict[str, str]) -> str:
    """Return a list that click does not wrap into one paragraph."""
    return "\b\n" + "\n".join(f"  {word:<10} {meaning}" for word, meaning in words.items())


_HELP = f"""Measure a broker: by default one of its own, on an embedded MongoDB in a temporary folder.

\b
SCENARIO is one of
{_meanings(SCENARIOS).removeprefix(chr(8) + chr(10))}

\b
--door says who connects
{_meanings(DOORS).removeprefix(chr(8) + chr(10))}

"sluicemq bench plan" measures nothing: it plans hosts, cores and disk for a load, and has its own --help.

Producers and workers are processes of their own; more than 16 workers share that many. Latency counts
from the time at which a job was due, so that a broker that stalls can't hide it.
"""


class _Bench(click.Command):
    """Measures, unless its first word is ``plan``, which is a command of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [plan_command.name]:
            return plan_command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


_count = click.IntRange(1)
_seconds = timespan(above=True)
_rate = Ruled(number(0.001, 1e9))


def _plot_file(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a wrong file before a long run, not after it."""
    if value is not None and value.suffix not in _FORMATS:
        raise click.BadParameter(f"name a file that ends with {' or '.join(_FORMATS)}")
    return value


def _headers(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, float] | None:
    try:
        return {key: json.loads(value) for key, value in (pair.split("=") for pair in pairs)} or None
    except ValueError:
        raise click.BadParameter("write KEY=NUMBER, for instance priority=5") from None


@click.command(cls=_Bench, help=_HELP, short_help="Measure how fast a broker is on this machine.")
@click.argument("scenario", type=click.Choice(list(SCENARIOS)))
@click.option("--door", type=click.Choice(list(DOORS)), help="Who connects.  [library]")
@click.option("--ack", type=click.Choice(list(ACKS)), help="When a PULL worker's job is done.  [received]")
@click.option("--jobs", type=_count, help="How many; in simulate, publishes of one round.")
@click.option("--size", type=_count, help="Bytes of a job.  [200; relay 64]")
@click.option("--producers", type=_count, help="Processes that push.  [1]")
@click.option("--workers", type=_count, help="Workers.  [1; of several queues one each]")
@click.option(
    "--processes",
    "worker_processes",
    type=_count,
    help="Processes that the workers share.  [one each, up to 16]",
)
@click.option("--queues", type=_count, help="Queues of the library, jobs and workers dealt in turn.  [1]")
@click.option("--prefetch", type=_count, help="Jobs at one worker; of PULL workers the device's own.")
@click.option("--window", type=_count, help="Unconfirmed jobs of a library producer; 1: one by one.  [20000]")
@click.option("--backlog", type=_count, help="Of drain: jobs in the queue before.  [--jobs]")
@click.option(
    "--header", "headers", multiple=True, callback=_headers, metavar="KEY=NUMBER",
    help="A header of every job of a library producer: priority, delay, ttl, keep_done.",
)  # fmt: skip
@click.option("--duration", type=_seconds, metavar="S", help="Push for S seconds; in drain, work.")
@click.option("--rate", type=_rate, metavar="N", help="Jobs a second; in latency 100 by default.")
@click.option("--iterations", type=_count, help="Rounds of simulate, a second each.  [25]")
@click.option("--device", type=click.Choice(DEVICES), help="What relay measures.  [streamer]")
@click.option(
    "--curve",
    is_flag=True,
    help="All have keys, and all is encrypted: with a broker of its own, or in relay.",
)
@click.option("--endpoint", help="A broker that runs already: its SMQ/1 door.")
@click.option("--key-file", metavar="FILE", help="The key pair for it, of `sluicemq key new`.")
@click.option("--server-key", metavar="KEY", help="Its public key.")
@click.option("--profile", metavar="NAME", help="A profile with these, and its user and password.")
@click.option(
    "--queue", help="Its queue to use; it must be empty.  [a new one, or of the other doors: default]"
)
@click.option("--frontend", help="Its door of PUSH or REQ.  [the default ones]")
@click.option("--backend", help="Its door of PULL or REP workers.")
@click.option("--commit", help="Its door for the commits of PULL workers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot", "plot_file", metavar="FILE", callback=_plot_file,
    type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Draw it: an .svg or .png.",
)  # fmt: skip
@click.pass_context
def bench(  # noqa: D103 - its help is above
    context: click.Context, /, scenario: str, plot_file: Path | None, endpoint: str | None, queue: str | None,
    frontend: str | None, backend: str | None, commit: str | None, *, as_json: bool, key_file: str | None,
    server_key: str | None, profile: str | None, **given: Any,
) -> None:  # fmt: skip
    # Only what the command line says: the environment may name a broker in production, and its keys.
    invocation = context.obj
    use_only(
        {
            "key_file": key_file or invocation.key_file,
            "server_key": server_key or invocation.server_key,
            "user": invocation.user,
            "password_file": os.environ.get(VARIABLES["password_file"]) if invocation.user else None,
            "profile": profile or invocation.profile,
        }
    )
    try:
        plan = planned(scenario, **given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if scenario == "stream":
        if endpoint or plot_file:
            raise click.UsageError(
                "stream runs a broker of its own, and draws nothing: no --endpoint, no --plot"
            )
        _show(invocation, watched.measured_streams(invocation, plan), as_json=as_json or invocation.as_json)
        return
    if plan.curve and (endpoint or invocation.named):
        raise click.UsageError("--curve is of a broker of the bench's own; a running one: --key-file")
    ends = {"frontend": frontend, "backend": backend, "commit": commit}
    outcome = watched.measured(invocation, plan, endpoint or invocation.named, queue, ends)
    _show(invocation, outcome, as_json=as_json or invocation.as_json)
    if plot_file:
        from sluicemq_bench.plot import plot  # noqa: PLC0415 - slow to load

        plot(outcome, plot_file)
        invocation.note(f"drawn: {plot_file}")


def _show(invocation: Invocation, outcome: Outcome | StreamOutcome, *, as_json: bool) -> None:
    if as_json:
        invocation.json(outcome.as_json())
        return
    settings = ", ".join(f"{name} {value}" for name, value in outcome.plan.described().items())
    invocation.result(settings)
    invocation.table("", outcome.rows())
