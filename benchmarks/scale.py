"""Whether the cost of a job stays the same: ``python benchmarks/scale.py [--quick] [--json] [PART ...]``.

Each part grows one thing, against a broker with an embedded MongoDB of its own:

* ready: drain 20,000 jobs with nothing, 100,000 and 1,000,000 ready ones behind them;
* delayed: the same with 500,000 delayed ones beside, in the same queue;
* queues: the same jobs, producer and 200 workers over 1, 20 and 200 queues, push to done;
* library, rep: 1, 16, 100 and 500 workers, push to done;
* payloads: 64 B to 1 MiB, push to done and drain.

The cases of a part take turns, in the other direction every other round; a ratio compares with the
part's first case in the same round. CPU is that of 1,000 jobs. Exit code 1 if a case has failed or
a drain was less than 0.9 as fast with others behind or beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq.client import Client
from sluicemq.producer import Producer
from sluicemq.protocol.errors import SluiceError
from sluicemq_bench.measure import Watch
from sluicemq_bench.outcome import Outcome
from sluicemq_bench.plan import Plan, planned
from sluicemq_bench.processes import BenchFailed
from sluicemq_bench.run import fill, make, measured, run
from sluicemq_bench.task import Site
from sluicemq_bench.watched import ended_by_sigterm, progress
from support.broker_process import BrokerProcess

LEAST = 0.9  # of the rate with nothing behind or beside
_LATER = 86_400.0  # seconds
_CALM, _CALM_PATIENCE = 20.0, 30.0  # % of a core that mongod uses at rest; seconds it gets to come to it
_DRAINED = 20_000
_QUICK = 20  # --quick has so many times fewer jobs
_err = Console(stderr=True)

Figures = dict[str, float]
Measure = Callable[[BrokerProcess, Watch], Outcome]


@dataclass(frozen=True)
class Case:
    """One row: how it is measured, and what must be there before the first round."""

    name: str
    measure: Measure
    prepare: Callable[[BrokerProcess, Watch], None] = lambda _broker, _watch: None


@dataclass(frozen=True)
class Part:
    """Cases to be compared with the first of them; ``least`` is the smallest ratio allowed."""

    cases: list[Case]
    least: float = 0.0


@dataclass
class Found:
    """The figures of one case, a value for each round."""

    rounds: list[Figures] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------- parts


def parts(scale: int) -> dict[str, Part]:
    """All of them, with so many times fewer jobs."""
    behind = [0, 100_000 // scale, 1_000_000 // scale]
    delayed = 500_000 // scale
    return {
        "ready": Part([_backlog(_DRAINED, backlog, 0) for backlog in behind], LEAST),
        "delayed": Part(
            [_backlog(_DRAINED, 0, 0), *(_backlog(_DRAINED, backlog, delayed) for backlog in behind)], LEAST
        ),
        "queues": Part([_queues(200_000 // scale, queues) for queues in (1, 20, 200)]),
        "library": Part([_library(100_000 // scale, prefetch) for prefetch in (1, 16, 100, 500)]),
        "rep": Part([_rep(20_000 // scale, prefetch) for prefetch in (1, 16, 100, 500)]),
        "payloads": Part([_payload(kind, size, scale) for kind in ("both", "drain") for size in _SIZES]),
    }


def _backlog(jobs: int, behind: int, delayed: int) -> Case:
    """A queue of its own, which holds the same before each round."""
    queue = f"scale-{behind}-{delayed}"
    plan = planned("drain", jobs=jobs)

    def prepare(broker: BrokerProcess, watch: Watch) -> None:
        site = Site(broker.doors["smq"], queue)
        with Client(endpoint=site.endpoint) as client:
            make(client, site.endpoint, [queue])
        if behind:
            fill(planned("drain", jobs=1, backlog=behind), site, watch)
        _push_delayed(site, delayed, watch)
        _await_calm(broker)

    def measure(broker: BrokerProcess, watch: Watch) -> Outcome:
        site = Site(broker.doors["smq"], queue)
        fill(plan, site, watch)
        with Client(timeout=30, endpoint=site.endpoint) as client:
            return measured(plan, site, client, watch)

    beside = f", {delayed:,} delayed" if delayed else ""
    name = f"{behind:,} behind" if behind else "nothing behind"
    return Case(name + beside, measure, prepare)


def _queues(jobs: int, queues: int) -> Case:
    plan = planned("both", jobs=jobs, queues=queues, workers=200, worker_processes=4, prefetch=100)
    return Case(f"{queues} queues", _library_run(plan))


def _library(jobs: int, workers: int) -> Case:
    plan = planned("both", jobs=jobs, workers=workers, worker_processes=min(workers, 4), prefetch=100)
    return Case(f"{workers} workers", _library_run(plan))


def _rep(jobs: int, workers: int) -> Case:
    plan = planned("both", door="rep", jobs=jobs, workers=workers, worker_processes=min(workers, 4))

    def measure(broker: BrokerProcess, watch: Watch) -> Outcome:
        return run(plan, Site(broker.doors["smq"], "default", backend=broker.doors["rep"]), watch)

    return Case(f"{workers} REP workers", measure)


# Bytes of a job, and about how many bytes of them make a run.
_SIZES = {64: 5_000_000, 1024: 50_000_000, 32 * 1024: 200_000_000, 2**20: 400_000_000}


def _payload(scenario: str, size: int, scale: int) -> Case:
    plan = planned(scenario, size=size, jobs=max(50, _SIZES[size] // size // scale))
    shown = {64: "64 B", 1024: "1 KiB", 32 * 1024: "32 KiB", 2**20: "1 MiB"}[size]
    return Case(f"{shown}, {'push to done' if scenario == 'both' else scenario}", _library_run(plan))


def _library_run(plan: Plan) -> Measure:
    return lambda broker, watch: run(plan, Site(broker.doors["smq"], "scale"), watch)


def _push_delayed(site: Site, jobs: int, watch: Watch) -> None:
    watch.phase("delayed ones", jobs)
    with Producer(endpoint=site.endpoint) as producer:
        for number in range(jobs):
            producer.push(site.queue, bytes(200), delay=_LATER)
            if number % 1000 == 0:
                watch.at(number)


def _await_calm(broker: BrokerProcess) -> None:
    """After a fill MongoDB still writes for a while."""
    mongod = psutil.Process(broker.mongod_pid)
    patience = time.monotonic() + _CALM_PATIENCE
    while mongod.cpu_percent(interval=0.5) > _CALM and time.monotonic() < patience:
        pass


# ----------------------------------------------------------------------- running


def main() -> int:
    """Measure the parts that were asked for."""
    options = _options()
    found: dict[str, dict[str, Found]] = {}
    everything = parts(_QUICK if options.quick else 1)
    with ended_by_sigterm(), progress(_err) as watch:
        for name in options.parts or everything:
            found[name] = _measure(everything[name], options.rounds or (1 if options.quick else 3), watch)
            if not options.json:
                Console(width=132).print(_table(name, found[name]))
    summary = {name: {case: _summary(cases, case) for case in cases} for name, cases in found.items()}
    if options.json:
        print(json.dumps(summary, indent=1))
    missed = [
        f"{name}: {case}"
        for name, cases in summary.items()
        for case, row in cases.items()
        if row["failures"] or row.get("ratio", 1.0) < everything[name].least
    ]
    for bound in missed:
        _err.print(f"MISSED {bound}")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the jobs, one round")
    parser.add_argument("--rounds", type=int, help="3, or with --quick 1")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts(1)):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(parts(1))}")
    return options


def _measure(part: Part, rounds: int, watch: Watch) -> dict[str, Found]:
    """A broker of its own for the part: what one leaves behind in memory and caches is not the next's."""
    found: dict[str, Found] = {case.name: Found() for case in part.cases}
    with BrokerProcess() as broker:
        for case in part.cases:
            case.prepare(broker, watch)
        for number in range(rounds):
            for case in part.cases[:: -1 if number % 2 else 1]:
                try:
                    found[case.name].rounds.append(_figures(case.measure(broker, watch)))
                except (BenchFailed, SluiceError) as failed:
                    _err.print(f"{case.name} failed: {failed}")
                    found[case.name].failures.append(str(failed))
    return found


def _figures(outcome: Outcome) -> Figures:
    figures = {
        "jobs_per_s": outcome.jobs_per_s,
        "mb_per_s": outcome.jobs_per_s * outcome.plan.size / 1e6,
        "seconds": outcome.seconds,
        "cpu_ms": sum(usage.cpu_s for usage in outcome.usage.values()) / outcome.jobs * 1e6,
    }
    for name, usage in outcome.usage.items():
        figures[f"{name}_cpu_ms"] = usage.cpu_s / outcome.jobs * 1e6
        figures[f"{name}_peak_mb"] = usage.peak_rss_mb
    return figures


# ----------------------------------------------------------------------- telling


def _summary(cases: Mapping[str, Found], case: str) -> dict[str, Any]:
    """Medians, the spread of the rate, and what they are of the first case in the same rounds."""
    found, first = cases[case], next(iter(cases.values()))
    if not found.rounds:
        return {"failures": found.failures}
    row: dict[str, Any] = {name: round(_median(found.rounds, name), 3) for name in found.rounds[0]}
    rates = [result["jobs_per_s"] for result in found.rounds]
    row |= {"least": round(min(rates)), "most": round(max(rates)), "failures": found.failures}
    pairs = list(zip(found.rounds, first.rounds, strict=False))
    if pairs:
        row["ratio"] = round(statistics.median(a["jobs_per_s"] / b["jobs_per_s"] for a, b in pairs), 3)
        row["cost_ratio"] = round(statistics.median(a["cpu_ms"] / b["cpu_ms"] for a, b in pairs), 3)
    return row


def _median(rounds: Sequence[Figures], name: str) -> float:
    return statistics.median(result[name] for result in rounds)


def _table(part: str, cases: Mapping[str, Found]) -> Table:
    table = Table(part, *_SHOWN.values(), title=f"{os.cpu_count()} cores; ratios to the first row")
    for case in cases:
        row = {"spread": "", **_summary(cases, case)}
        if row["failures"]:
            row["spread"] = f"{len(row['failures'])} failed "
        if "least" in row:
            row["spread"] += f"{row['least']:,} .. {row['most']:,}"
        table.add_row(case, *(_number(row.get(name, "-")) for name in _SHOWN))
    return table


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


_SHOWN = {
    "jobs_per_s": "jobs/s",
    "spread": "least .. most",
    "ratio": "ratio",
    "mb_per_s": "MB/s",
    "broker_cpu_ms": "CPU ms broker",
    "mongod_cpu_ms": "mongod",
    "cost_ratio": "ratio",
    "broker_peak_mb": "peak MB broker",
    "mongod_peak_mb": "mongod",
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
