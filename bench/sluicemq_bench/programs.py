"""The processes of a run: ``python -m sluicemq_bench.programs TASK``, started by the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic_ns

from sluicemq_bench import relay_programs as relay
from sluicemq_bench.due_times import SECOND, Payloads, Times, sleep_until, stamp_of, stamps
from sluicemq_bench.plan import READ_SHARE
from sluicemq_bench.producers import CONFIRMED, source_for
from sluicemq_bench.shared_counts import SharedCounts
from sluicemq_bench.task import Task, await_go, report
from sluicemq_bench.workers import WORKERS_OF

_COUNT_EVERY = 64


def produce(task: Task, counts: SharedCounts) -> None:
    """Send this process's share of the jobs, as fast as it can or at a rate."""
    payloads = Payloads(task.plan.size)
    sent = 0
    with source_for(task) as source:
        start = await_go()
        duration = task.plan.duration if task.plan.scenario != "drain" else None
        for stamp in stamps(start, task.jobs, rate=task.rate, duration=duration):
            source.send(payloads.of(stamp), stamp)
            sent += 1
            if sent % _COUNT_EVERY == 0:
                counts.set(source.confirmed())
    ended = monotonic_ns()
    counts.set(sent)
    report(sent, ended=ended, **{CONFIRMED: source.times.encoded()})


def work(task: Task, counts: SharedCounts) -> None:
    """Take jobs until all workers together have taken those of the run."""
    count = TimedCount(counts, timed=task.plan.scenario != "drain")
    WORKERS_OF[task.plan.door](task, counts, count, await_go)
    # A worker without the last job has been done since its own last one.
    report(count.done, ended=monotonic_ns() if count.over else count.last, taken=count.times.encoded())


def publish(task: Task, counts: SharedCounts) -> None:
    """Publish in the load simulation: in each round, this process's share of the jobs at once."""
    payloads = Payloads(task.plan.size)
    with source_for(task) as source:
        start = await_go()
        for number in range(task.plan.iterations):
            sleep_until(start + number * SECOND)
            source.send_together([payloads.of(monotonic_ns()) for _ in range(task.jobs)])
            counts.set((number + 1) * task.jobs)
    report(task.plan.iterations * task.jobs, publish=source.times.encoded())


def read(task: Task, counts: SharedCounts) -> None:
    """Read in the load simulation: in each round, this process's share of the reads, one by one."""
    reading = TimedReads(counts, max(1, int(task.jobs * READ_SHARE)), task.plan.iterations)
    WORKERS_OF[task.plan.door](task, counts, reading, await_go)
    report(reading.done, fetch=reading.times.encoded())


class TimedCount:
    """Counts jobs, and times them from their stamps."""

    def __init__(self, counts: SharedCounts, *, timed: bool) -> None:
        self.times = Times()
        self.done = 0
        self.last = 0
        self.over = False
        self._counts = counts
        self._timed = timed

    def started(self, start: int) -> None:
        """Note the start: without a job, this worker is done since then."""
        self.last = start

    def __call__(self, payload: bytes) -> None:
        """Count one job."""
        self.last = monotonic_ns()
        if self._timed:
            self.times.add(self.last - stamp_of(payload))
        self.done += 1
        self._counts.set(self.done)
        self.over = self._counts.is_over()


class TimedReads:
    """Times each read from its request (the job before is settled) to the job's arrival."""

    def __init__(self, counts: SharedCounts, share: int, rounds: int) -> None:
        self.times = Times()
        self.done = 0
        self._counts = counts
        self._share, self._rounds = share, rounds
        self._start = self._requested_at = 0

    @property
    def over(self) -> bool:
        """Return whether all its rounds are read."""
        return self.done >= self._share * self._rounds

    def started(self, start: int) -> None:
        """Begin the first round."""
        self._start = start
        self._requested_at = monotonic_ns()

    def __call__(self, _payload: bytes) -> None:
        """Count one job; after the last of a round, sleep until the next round."""
        self.times.add(monotonic_ns() - self._requested_at)
        self.done += 1
        self._counts.set(self.done)
        if self.done % self._share == 0 and not self.over:
            sleep_until(self._start + self.done // self._share * SECOND)
        self._requested_at = monotonic_ns()


PROGRAMS: dict[str, Callable[[Task, SharedCounts], None]] = {
    "produce": produce,
    "work": work,
    "publish": publish,
    "read": read,
    "flood": relay.flood,
    "sink": relay.sink,
    "broadcast": relay.broadcast,
    "listen": relay.listen,
    "call": relay.call,
    "echo": relay.echo,
}


def main() -> None:
    """Run the task of the first argument."""
    task = Task.decoded(sys.argv[1])
    PROGRAMS[task.program](task, task.open_counts())


if __name__ == "__main__":
    main()
