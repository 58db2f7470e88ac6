"""Runs of the bench, with their progress on the terminal; errors are one sentence."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sluicemq.cli.output import Invocation
from sluicemq_bench.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from sluicemq_bench.outcome import Outcome
    from sluicemq_bench.streams import StreamOutcome


def measured(
    invocation: Invocation, plan: Plan, endpoint: str | None, queue: str | None, ends: dict[str, str | None]
) -> Outcome:
    """Measure the broker at the endpoint, or one of the bench's own."""
    from sluicemq_bench import broker, relay, run  # noqa: PLC0415 - slow to load, and --help needs none

    with _watched(invocation) as watch:
        if plan.scenario == "relay":
            return relay.run_relay(plan, watch)
        if endpoint:
            return run.run(plan, broker.site_of(plan, endpoint, queue, ends), watch)
        watch.phase("starting a broker", None)
        with broker.own_broker(plan) as site:
            return run.run(plan, site, watch)


def measured_streams(invocation: Invocation, plan: Plan) -> StreamOutcome:
    """Measure streams beside queues at a broker of the bench's own."""
    from sluicemq_bench import broker, streams  # noqa: PLC0415 - as above

    with _watched(invocation) as watch:
        watch.phase("starting a broker", None)
        with broker.own_broker(plan) as site:
            return streams.run_streams(plan, site, watch)


@contextmanager
def _watched(invocation: Invocation) -> Iterator[Bar]:
    """Show progress; errors become one sentence."""
    from sluicemq_bench.processes import BenchFailed  # noqa: PLC0415 - as above

    try:
        with ended_by_sigterm(), progress(invocation.err) as watch:
            yield watch
    except BenchFailed as failed:
        raise click.ClickException(str(failed)) from failed


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Leave all blocks at SIGTERM too, since that ends the processes that were started."""
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Bar:
    """The progress of a run, a bar for each of its parts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", visible=False)

    def phase(self, name: str, total: int | None) -> None:
        """Begin another bar."""
        self._progress.update(self._task, total=self._progress.tasks[-1].completed)
        self._task = self._progress.add_task(name, total=total)

    def at(self, done: int) -> None:
        """Set the number of done jobs."""
        self._progress.update(self._task, completed=done)


@contextmanager
def progress(console: Console) -> Iterator[Bar]:
    """Show the progress of runs, if this is a terminal."""
    from sluicemq.cli import bars  # noqa: PLC0415 - slow to load, and --help shows none

    with bars.counted(console) as shown:
        yield Bar(shown)
