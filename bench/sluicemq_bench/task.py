"""The task of one process of a run, and its messages to the run: ready, start, one result."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

from sluicemq_bench.due_times import sleep_until
from sluicemq_bench.plan import Plan
from sluicemq_bench.shared_counts import SharedCounts


@dataclass(frozen=True)
class Site:
    """Destination of the jobs: a broker's addresses and the queue behind them; or the ends of a relay.

    With CURVE there are the server's public key, and the clients' public and secret one, as text.
    """

    endpoint: str = ""
    queue: str = ""
    frontend: str = ""
    backend: str = ""
    commit: str = ""
    http: str = ""
    server_key: str = ""
    public_key: str = ""
    secret_key: str = ""

    def queues(self, plan: Plan) -> list[str]:
        """Return the names of the plan's queues; only the queue itself if there is one."""
        return [self.queue, *(f"{self.queue}-{number}" for number in range(2, plan.queues + 1))]


@dataclass(frozen=True)
class Task:
    """One process's part.

    ``jobs`` and ``rate`` are its own share, ``slot`` its cell of the counts, ``worker_numbers`` those of its
    workers, from 0.
    """

    program: str
    site: Site
    plan: Plan
    jobs: int
    slot: int
    counts: str
    rate: float | None = None
    early: bool = False
    """Workers: be connected before the start, and not only from then on."""
    worker_numbers: tuple[int, ...] = ()

    def encoded(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Task:
        """Return the task of :meth:`encoded`."""
        fields: dict[str, Any] = json.loads(text)
        whole = {"site": Site(**fields["site"]), "plan": Plan(**fields["plan"])}
        return cls(**fields | whole | {"worker_numbers": tuple(fields["worker_numbers"])})

    def open_counts(self) -> SharedCounts:
        """Open the counts, with this process's cell to write to."""
        return SharedCounts(Path(self.counts), self.plan.worker_processes, self.slot)


@dataclass(frozen=True)
class Result:
    """The result of one process: when it ended (monotonic ns), and histograms by name."""

    ended: int
    done: int
    times: dict[str, str] = field(default_factory=dict)


def await_go() -> int:
    """Report that this process is ready, and return at the start, with its time in monotonic ns."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        sys.exit("the bench has ended before the start")
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    start = int(line)
    sleep_until(start)
    return start


def _end_with_the_run() -> None:
    """End the process when the run is killed: nobody writes after the start, so the pipe's end shows it."""
    sys.stdin.read()
    os._exit(1)


def report(done: int, *, ended: int | None = None, **times: str) -> None:
    """Report this process's result to the run."""
    result = Result(ended or monotonic_ns(), done, times)
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    sys.stdout.flush()


def shares(task: Task, processes: int, first_slot: int) -> list[Task]:
    """Return a task for each of several processes, with its share of the jobs, the rate, and the workers."""
    jobs, rest = divmod(task.jobs, processes)
    rate = task.rate / processes if task.rate else None
    return [
        replace(
            task,
            jobs=jobs + (number < rest),
            rate=rate,
            slot=first_slot + number,
            worker_numbers=task.worker_numbers[number::processes],
        )
        for number in range(processes)
    ]
