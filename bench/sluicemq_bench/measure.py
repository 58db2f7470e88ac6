"""One measurement: start the processes, watch them to their end, collect their results."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Protocol

from sluicemq_bench.due_times import SECOND, merged
from sluicemq_bench.outcome import Outcome, Timeline
from sluicemq_bench.plan import ENDLESS, Plan
from sluicemq_bench.processes import BenchFailed, Processes
from sluicemq_bench.shared_counts import SharedCounts
from sluicemq_bench.task import Result, Site, Task, shares
from sluicemq_bench.usage import Meter

_LOOK = 0.05  # seconds between looks at the counts
_STALLED = 60.0  # seconds without a job after which the run is given up
_HEAD_START = SECOND // 20  # for the start to reach all processes


class Watch(Protocol):
    """A display of the progress."""

    def phase(self, name: str, total: int | None) -> None:
        """Begin another part of the run, with a number of jobs if that is known."""

    def at(self, done: int) -> None:
        """Show how many jobs of this part are done."""


@dataclass(frozen=True)
class Programs:
    """A plan and its programs: of producers and of workers ('': none), and what is measured."""

    plan: Plan
    site: Site
    pids: dict[str, int]
    producing: str
    working: str
    producers_count: bool
    """True if a job is done when its producer knows, not when a worker has it."""


def measure(programs: Programs, watch: Watch, ready: Callable[[], None] = lambda: None) -> Outcome:
    """Run a plan; ``ready`` returns when the workers, which start first, are connected."""
    _announce(programs.plan, watch)
    with (
        counts_for(programs.plan) as (file, counts),
        Processes(_workers(programs, file)) as workers,
        Processes(_producers(programs, file)) as producers,
    ):
        counts.target = _known_target(programs)
        workers.wait_ready()
        ready()
        meter, timeline = Meter(programs.pids), Timeline()

        def report(seconds: float, done: int) -> None:
            meter.read()
            timeline.add(seconds, done)
            watch.at(done)
            _end_workers(programs.plan, counts, producers, seconds)

        counted = counts.produced if programs.producers_count else counts.worked
        start = carry_out([workers, producers], counted, report)
        meter.read()
        found = [workers.results(), producers.results()]
        deciding = found[1] if programs.producers_count else found[0]
        return _outcome(programs.plan, start, deciding, found[1] + found[0], meter, timeline)


def carry_out(
    groups: Sequence[Processes], counted: Callable[[], int], report: Callable[[float, int], None]
) -> int:
    """Start groups and watch them until all have ended; returns when they started, in monotonic ns."""
    for process in groups:
        process.wait_ready()
    start = monotonic_ns() + _HEAD_START
    for process in groups:
        process.go(start)
    stall = _Stall()
    while not all([process.ended() for process in groups]):  # noqa: C419 - each must check whether it has failed
        time.sleep(_LOOK)
        done = counted()
        report((monotonic_ns() - start) / SECOND, done)
        stall.at(done)
    return start


@contextmanager
def counts_for(plan: Plan) -> Iterator[tuple[Path, SharedCounts]]:
    """Make the counts of a run, in a file."""
    with tempfile.NamedTemporaryFile(prefix="sluicemq-bench-") as file:
        path = Path(file.name)
        yield path, SharedCounts.make(path, plan.worker_processes, plan.producers)


class _Stall:
    """Ends a run in which no job is done any more."""

    def __init__(self) -> None:
        self._done = 0
        self._since = time.monotonic()

    def at(self, done: int) -> None:
        if done != self._done:
            self._done, self._since = done, time.monotonic()
        elif time.monotonic() - self._since > _STALLED:
            raise BenchFailed(f"no job was done for {_STALLED:g} s, after {done} jobs")


def _announce(plan: Plan, watch: Watch) -> None:
    total = plan.jobs * plan.iterations if plan.scenario == "simulate" else plan.jobs
    watch.phase(plan.scenario, total if total < ENDLESS else None)


def _workers(programs: Programs, file: Path) -> list[Task]:
    early = programs.plan.scenario != "drain"
    worker_numbers = tuple(range(programs.plan.workers))
    task = Task(
        programs.working,
        programs.site,
        programs.plan,
        programs.plan.jobs,
        0,
        str(file),
        early=early,
        worker_numbers=worker_numbers,
    )
    return shares(task, programs.plan.worker_processes, 1) if programs.working else []


def _producers(programs: Programs, file: Path) -> list[Task]:
    task = Task(
        programs.producing,
        programs.site,
        programs.plan,
        programs.plan.jobs,
        0,
        str(file),
        rate=programs.plan.rate,
    )
    return (
        shares(task, programs.plan.producers, 1 + programs.plan.worker_processes)
        if programs.producing
        else []
    )


def _known_target(programs: Programs) -> int:
    """Return after how many jobs the workers end, if that is known before."""
    if programs.plan.scenario == "simulate" or programs.producers_count:
        return ENDLESS
    return programs.plan.jobs * (programs.plan.workers if _is_copied(programs.plan) else 1)


def _end_workers(plan: Plan, counts: SharedCounts, producers: Processes, seconds: float) -> None:
    """End workers whose number of jobs was not known before: with the last job produced, or in time."""
    if plan.scenario == "drain":
        if plan.duration and seconds >= plan.duration:
            counts.target = 0
    elif plan.scenario != "simulate" and not _is_copied(plan) and producers.ended():
        counts.target = counts.produced()


def _is_copied(plan: Plan) -> bool:
    """Return whether every worker gets every message."""
    return plan.scenario == "relay" and plan.device == "forwarder"


def _outcome(
    plan: Plan, start: int, deciding: list[Result], found: list[Result], meter: Meter, timeline: Timeline
) -> Outcome:
    done = sum(result.done for result in deciding)
    if not done:
        raise BenchFailed("not one job was done")
    seconds = (max(result.ended for result in deciding) - start) / SECOND
    names = dict.fromkeys(name for result in found for name in result.times)
    merges = {name: merged([part.times[name] for part in found if name in part.times]) for name in names}
    times = {name: histogram for name, histogram in merges.items() if histogram.total_count}
    return Outcome(plan, done, seconds, meter.usage, times, timeline.until(seconds, done))
