"""Fair queues beside plain ones: how many jobs a second, and how long a single job waits behind a flood.

    .venv-test/bin/python benchmarks/fair.py [--jobs 20000] [--tenants 1 10 100 1000] [--limited]

One broker with an embedded MongoDB, one worker of the library. Plain and fair in turn, A B A B in one run,
and with --limited fair ones whose tenants may have more than they have, running or in a second:
jobs that were pushed first (claim and commit), and jobs that are pushed beside the work (from end to end).
Then one tenant's flood, and behind it single jobs of others: how long each takes, how many jobs go first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.worked import Book, Made, push, push_and_work, work

from sluicemq import Job, Producer, Worker
from support.broker_process import BrokerProcess

#: Seconds between two single jobs behind the flood.
PAUSE = 0.05


class Singles(Book):
    """Notes when the single jobs were done, and how many before each."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.single: dict[str, tuple[float, int]] = {}

    def note(self, job: Job) -> None:
        if job.id.startswith("single"):
            self.single[job.id] = time.monotonic(), self.done


def of(tenants: int) -> Made:
    """Jobs of so many tenants, in turn."""
    return lambda number: {"payload": b"." * 200, "tenant": f"t{number % tenants}"}


def drained(broker: BrokerProcess, queue: str, jobs: int, tenants: int) -> float:
    """Jobs a second, of those that were pushed first."""
    push(broker, queue, jobs, of(tenants))
    return jobs / work(broker, queue, Book(jobs))


def beside(broker: BrokerProcess, queue: str, jobs: int, tenants: int) -> float:
    """The same of those that are pushed meanwhile."""
    return jobs / push_and_work(broker, queue, Book(jobs), of(tenants))


def rates(broker: BrokerProcess, kinds: list[str], jobs: int, tenants: int, rounds: int) -> None:
    """A line for each way: medians, and each kind beside the first."""
    for name, way in (("pushed first", drained), ("end to end", beside)):
        found: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds):
            for kind in kinds:
                queue = f"{kind}-{way.__name__}-{tenants}-{number}"
                found[kind].append(way(broker, queue, jobs, tenants))
        plain = statistics.median(found[kinds[0]])
        told = (
            f"{kind} {(rate := statistics.median(found[kind])):7.0f}/s {rate / plain:5.2f}" for kind in kinds
        )
        turns = "  ".join(
            " ".join(f"{rate:.0f}" for rate in turn) for turn in zip(*found.values(), strict=True)
        )
        print(f"{tenants:5} tenants, {name:12}  {'  '.join(told)}   ({turns})", flush=True)


def flood(broker: BrokerProcess, kind: str, jobs: int, singles: int) -> None:
    """How long single jobs take that are pushed while a flood is worked on."""
    queue = f"{kind}-flood"
    push(broker, queue, jobs, of(1))
    book, pushed = Singles(jobs + singles), {}
    with (
        Producer(endpoint=broker.doors["smq"]) as producer,
        Worker(queue, book.handle, prefetch=100, endpoint=broker.doors["smq"]),
    ):
        for number in range(singles):
            name = f"single-{number}"
            pushed[name] = time.monotonic(), book.done
            producer.push(queue, b"x", id=name, tenant=name)
            time.sleep(PAUSE)
        book.wait()
    waits = sorted(book.single[key][0] - pushed[key][0] for key in pushed)
    before = sorted(book.single[key][1] - pushed[key][1] for key in pushed)
    print(
        f"{kind:5}: {singles} single jobs behind a flood of {jobs}: "
        f"median {1000 * statistics.median(waits):.0f} ms, longest {1000 * waits[-1]:.0f} ms; "
        f"jobs done meanwhile: median {statistics.median(before):.0f}, most {before[-1]}",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--flood", type=int, default=100_000)
    parser.add_argument("--singles", type=int, default=20)
    parser.add_argument("--tenants", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limited", action="store_true")
    given = parser.parse_args()
    settings = {
        "plain": {},
        "fair": {"fair": True},
        "running": {"fair": True, "tenant_max_running": 100_000},
        "rated": {"fair": True, "tenant_rate": 1_000_000},
    }
    kinds = [*settings] if given.limited else ["plain", "fair"]
    queues = {
        f"{kind}-{way}-{tenants}-{number}": settings[kind]
        for kind in kinds
        for way in ("drained", "beside")
        for tenants in given.tenants
        for number in range(given.rounds)
    }
    config = {"queues": {**queues, "fair-flood": settings["fair"]}}
    with BrokerProcess(config=config) as broker:
        for tenants in given.tenants:
            rates(broker, kinds, given.jobs, tenants, given.rounds)
        if given.flood:
            flood(broker, "plain", given.flood, given.singles)
            flood(broker, "fair", given.flood, given.singles)


if __name__ == "__main__":
    main()
