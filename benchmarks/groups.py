"""Jobs in groups: how many a second, beside a plain queue, on one broker with an embedded MongoDB.

    .venv-test/bin/python benchmarks/groups.py [--jobs 40000] [--groups 1000]

Pushed first, then worked on by one worker: what each job takes is its claim, its commit, and the promotion of
the next of its group. Also pushed while they are worked on, from end to end.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.worked import Book, Made, push, push_and_work, work

from sluicemq import Job
from support.broker_process import BrokerProcess


class InOrder(Book):
    """Holds each group to its order."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.last: dict[str, int] = defaultdict(lambda: -1)

    def note(self, job: Job) -> None:
        group, _, number = job.payload.partition(b" ")[0].decode().rpartition("-")
        if group and int(number) <= self.last[group]:
            sys.exit(f"{job.payload!r} came behind {self.last[group]}")
        self.last[group] = int(number)


def of(groups: int) -> Made:
    """Jobs of so many groups, in turn; of 0: of none."""

    def made(number: int) -> dict[str, Any]:
        name = f"g{number % groups}" if groups else None
        return {"payload": f"{name or ''}-{number} ".encode().ljust(200, b"."), "group": name}

    return made


def measure(broker: BrokerProcess, name: str, jobs: int, groups: int) -> None:
    """One line of figures."""
    pushed = push(broker, f"{name}-first", jobs, of(groups))
    worked = work(broker, f"{name}-first", InOrder(jobs))
    both = push_and_work(broker, f"{name}-beside", InOrder(jobs), of(groups))
    print(
        f"{name:10} push {jobs / pushed:8.0f}/s   claim, commit, promote {jobs / worked:8.0f}/s   "
        f"end to end {jobs / both:8.0f}/s",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--groups", type=int, default=1000)
    given = parser.parse_args()
    with BrokerProcess() as broker:
        measure(broker, "plain", given.jobs, 0)
        measure(broker, "grouped", given.jobs, given.groups)


if __name__ == "__main__":
    main()
