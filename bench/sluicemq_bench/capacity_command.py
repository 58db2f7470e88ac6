"""``sluicemq bench plan``: from a load to hosts, cores, disk and oplog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sluicemq.cli.options import Ruled, timespan
from sluicemq.protocol.rules import number
from sluicemq_bench import capacity, watched
from sluicemq_bench.capacity import DAY, IN_BROKER, Capacity, Costs, Hosts, Load
from sluicemq_bench.plan import STAMP_BYTES, planned

if TYPE_CHECKING:
    from sluicemq.cli.output import Invocation
    from sluicemq_bench.outcome import Outcome

_HELP = """Plan an installation: hosts, cores, disk and oplog for a load.

Costs of a job are those of docs/scaling.md, or with --measure those of this machine. Nothing is started
without --measure.
"""

_rate = Ruled(number(0.001, 1e9))
_none_or_rate = Ruled(number(0, 1e9))
_share = Ruled(number(0, 1))
_used = Ruled(number(0.01, 1))
_count = click.IntRange(1)
_span = timespan()


@click.command("plan", help=_HELP, short_help="Plan hosts, cores, disk and oplog for a load.")
@click.option("--rate", type=_rate, required=True, metavar="N", help="Jobs a second at the peak.")
@click.option("--average", type=_rate, metavar="N", help="Jobs a second over days.  [a third of --rate]")
@click.option("--size", type=_count, default=200, show_default=True, help="Bytes of a job.")
@click.option("--door", type=click.Choice(list(IN_BROKER)), default="library", show_default=True,
              help="Who works.")  # fmt: skip
@click.option("--curve", is_flag=True, help="Clients have keys, and all is encrypted.")
@click.option("--claimed", type=_share, default=1.0, show_default=True,
              help="Share of jobs that wait, or are pushed at another broker.")  # fmt: skip
@click.option("--queues", type=_count, default=10, show_default=True, help="Queues with workers.")
@click.option("--job-seconds", type=_span, default=0.0, metavar="S", help="How long a job is worked on.")
@click.option("--outage", type=_span, default=3600.0, metavar="S",
              help="How long all workers may be away at the peak.  [1h]")  # fmt: skip
@click.option("--keep-done", type=_span, default=0.0, metavar="S", help="keep_done of the queues.  [0]")
@click.option("--dead", type=_share, default=0.001, show_default=True, help="Share that become dead letters.")
@click.option("--keep-dead", type=_span, default=90 * DAY, metavar="S", help="How long these stay.  [90d]")
@click.option("--stream-rate", type=_none_or_rate, default=0.0, metavar="N",
              help="Messages of streams a second.  [0]")  # fmt: skip
@click.option("--stream-size", type=_count, default=200, show_default=True, help="Bytes of a message.")
@click.option("--stream-keep", type=_span, default=7 * DAY, metavar="S", help="How long they stay.  [7d]")
@click.option("--cores", type=_count, default=8, show_default=True, help="Cores of a MongoDB node.")
@click.option("--nodes", type=_count, default=3, show_default=True, help="Nodes of a replica set.")
@click.option("--use", type=_used, default=0.5, show_default=True, help="Share of cores and disks in use.")
@click.option("--oplog", type=timespan(above=True), default=DAY, metavar="S",
              help="How far the oplog reaches back.  [1d]")  # fmt: skip
@click.option("--measure", is_flag=True, help="Measure the costs of a job here first, for half a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def plan(  # noqa: D103 - its help is above
    context: click.Context, /, *, average: float | None, rate: float, cores: int, nodes: int, use: float,
    oplog: float, measure: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    invocation: Invocation = context.obj
    load = Load(rate=rate, average=rate / 3 if average is None else average, **given)
    if load.average > load.rate:
        raise click.UsageError(f"an --average of {load.average:g} is more than the peak, --rate {rate:g}")
    costs = measured(invocation, load) if measure else capacity.costs_of(load)
    found = capacity.planned(load, costs, Hosts(cores=cores, nodes=nodes, use=use, oplog=oplog))
    if as_json or invocation.as_json:
        invocation.json({**found.as_json(), "costs": costs.as_json()})
        return
    invocation.result(costs.described())
    invocation.table("", rows(found))


def measured(invocation: Invocation, load: Load) -> Costs:
    """Return the costs of a job on this machine, from runs with a broker of the bench's own.

    A claimed job is pushed while nobody works, and drained later.
    """
    size = max(load.size, STAMP_BYTES)
    through = _run_of(invocation, "both", door=load.door, size=size, curve=load.curve)
    waited = [_run_of(invocation, kind, size=size, curve=load.curve) for kind in ("push", "drain")]
    reserved = _microseconds(through, "mongod")
    return Costs(
        broker=_microseconds(through, "broker"),
        reserved=reserved,
        claimed=max(reserved, sum(_microseconds(run, "mongod") for run in waited)),
        source="this machine",
    )


def _run_of(invocation: Invocation, scenario: str, **given: Any) -> Outcome:
    return watched.measured(invocation, planned(scenario, **given), None, None, {})


def rows(found: Capacity) -> list[dict[str, Any]]:
    """Return a line for each part of the installation."""
    sets = found.replica_sets
    return [
        _row("brokers", f"{found.brokers}", "one of them may fail; each a core, and its memory"),
        _row("memory of a broker", _bytes(found.broker_bytes), "three times hwm_bytes, and 50 MB"),
        _row("replica sets", f"{sets}", "spread the queues over them" if sets > 1 else "one is enough"),
        _row("MongoDB nodes", f"{found.nodes}", f"cores of each: {found.node_cores}"),
        _row("disk of a node", _bytes(found.disk_bytes), "data, oplog and 1 GB"),
        _row("oplog of a node", _bytes(found.oplog_bytes), f"--oplogSize {_mib(found.oplog_bytes)}"),
        _row("written to its disk", _bytes(found.written_bytes_per_s) + "/s", "at the peak"),
        _row("to each secondary", _bytes(found.replicated_bytes_per_s) + "/s", "at the peak"),
        _row("jobs that wait", f"{found.jobs_waiting:,}", "at the end of the outage"),
        _row("jobs that are kept", f"{found.jobs_kept:,}", "done ones and dead letters"),
        _row("full first", found.full_first, "when the load grows"),
        *_at_work(found.jobs_at_work),
    ]


def _at_work(jobs: int) -> list[dict[str, Any]]:
    """Return the line of ``--job-seconds``, if it was given."""
    return [_row("jobs at work", f"{jobs:,}", "workers times their concurrency")] if jobs else []


def _row(part: str, needed: str, note: str) -> dict[str, Any]:
    return {"part": part, "needed": needed, "note": note}


def _bytes(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count} bytes"


def _mib(count: int) -> int:
    """Return MiB, and no less than MongoDB's least for an oplog."""
    return max(990, -(-count // 1_048_576))


def _microseconds(outcome: Outcome, process: str) -> float:
    return outcome.usage[process].cpu_s / outcome.jobs * 1e6
