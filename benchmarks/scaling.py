"""Models and simulates 1 to 64 brokers: ``python benchmarks/scaling.py [waste|rates|duties|measure ...]``.

A model with measured costs, for brokers that nobody has beside each other here:

* waste: a simulation of claims by discrete events. All brokers drain one queue: each reads up to 1,000 jobs,
  and reserves those that no other has reserved meanwhile. Printed is the share of jobs that were read in
  vain, if each reads the first jobs, a random page of as many as there are brokers, or its part;
* rates: jobs a second, from the CPU of 1,000 jobs in a broker and in mongod, by brokers and shards; and what
  is full first;
* duties: the statements a second at rest, by brokers and queues;
* measure: these statements, counted by a mongod of its own, with 1, 2 and 4 brokers beside the model.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.equal import mongod
from pymongo import MongoClient

from sluicemq import Client, Worker
from sluicemq_bench import capacity
from sluicemq_broker.queue.scheduler import ALONE, CLAIM, CROWD
from sluicemq_broker.store.jobs.priority_order import PARTED, ROUND
from support.broker_process import BrokerProcess

# -------------------------------------------------------------- measured costs
#: Seconds of a claim of 1,000 jobs: to read them, and to reserve them.
READ, RESERVE = 0.009, 0.016
#: Seconds of CPU of 1,000 jobs: in a broker; in mongod if they are inserted reserved; if they are claimed.
IN_BROKER, RESERVED, CLAIMED = (
    ms / 1000 for ms in (capacity.IN_BROKER["library"], capacity.RESERVED, capacity.CLAIMED)
)
#: Seconds of CPU of a small statement in mongod.
STATEMENT = 0.0002
#: Settings' defaults in seconds, and queues in one survey.
LEASE, POLL, LOOK, SURVEYED = 15.0, 1.0, 0.4, 50

# ----------------------------------------------------------------------- waste


class Backlog:
    """Jobs by their numbers, of which the first ``start`` are reserved."""

    def __init__(self, jobs: int) -> None:
        self.reserved = bytearray(jobs)
        self.start = 0

    def first(self, limit: int, skip: int = 0, parts: int = 1, part: int | None = None) -> list[int]:
        """Return the first ready jobs, of one part or all."""
        while self.start < len(self.reserved) and self.reserved[self.start]:
            self.start += 1
        at, step = self.start, 1
        if part is not None:
            at, step = self.start + (part - self.start) % parts, parts
        found: list[int] = []
        while at < len(self.reserved) and len(found) < limit + skip:
            if not self.reserved[at]:
                found.append(at)
            at += step
        return found[skip:]

    def reserve(self, jobs: list[int]) -> int:
        """Reserve those of the jobs that are ready; return how many."""
        won = [job for job in jobs if not self.reserved[job]]
        for won_job in won:
            self.reserved[won_job] = 1
        return len(won)


class Reader:
    """One broker, as it chooses what to read."""

    def __init__(self, backlog: Backlog, brokers: int, place: int) -> None:
        self.backlog, self.brokers, self.place = backlog, brokers, place
        self.late_until = -1.0

    def first(self, _now: float) -> list[int]:
        """Read the first jobs."""
        return self.backlog.first(CLAIM)

    def page(self, _now: float) -> list[int]:
        """Read a random page."""
        skip = CLAIM * random.randrange(self.brokers)
        return self.backlog.first(CLAIM, skip) or self.first(_now)

    def part(self, now: float) -> list[int]:
        """Read a part of its own while it was too late a moment ago."""
        if now >= self.late_until:
            return self.first(now)
        part = (self.place + int(now / ROUND)) % self.brokers
        return self.backlog.first(CLAIM, 0, self.brokers, part) or self.backlog.first(CLAIM // self.brokers)


def wasted(brokers: int, way: Callable[[Reader, float], list[int]], jobs: int, cores: int = 8) -> float:
    """Return the share of jobs that are read in vain while some brokers drain a backlog."""
    backlog = Backlog(jobs)
    stretch = max(1.0, brokers / cores)  # statements wait for a core of mongod
    readers = [Reader(backlog, brokers, place) for place in range(brokers)]
    events: list[tuple[float, int, list[int] | None]] = [
        (random.uniform(0, READ), place, None) for place in range(brokers)
    ]
    heapq.heapify(events)
    read = won = 0
    while events:
        now, place, page = heapq.heappop(events)
        if page is None:
            page = way(readers[place], now)
            if page:
                took = RESERVE * len(page) / CLAIM * stretch * random.uniform(0.5, 1.5)
                heapq.heappush(events, (now + took, place, page))
            continue
        mine = backlog.reserve(page)
        read, won = read + len(page), won + mine
        if mine < len(page):
            readers[place].late_until = now + PARTED
        heapq.heappush(events, (now + READ * stretch * random.uniform(0.5, 1.5), place, None))
    return 1 - won / read


def show_waste() -> None:
    """Print a line for each number of brokers."""
    random.seed(32)
    ways = {"the first": Reader.first, "a random page": Reader.page, "its part": Reader.part}
    for brokers in (1, 2, 4, 16, 64):
        jobs = 400 * CLAIM
        told = (f"{name} {100 * wasted(brokers, way, jobs):4.1f} %" for name, way in ways.items())
        print(f"waste, {brokers:2} brokers on one queue, each reads  {', '.join(told)}", flush=True)


# ----------------------------------------------------------------------- rates


def show_rates(cores: int = 8) -> None:
    """Print jobs a second and what is full, for brokers with a core each and shards of ``cores``."""
    for brokers in (1, 4, 16, 64):
        for shards in (1, 4, 16):
            told = []
            for name, cost in (("inserted reserved", RESERVED), ("claimed", CLAIMED)):
                by_brokers, by_shards = 1000 * brokers / IN_BROKER, 1000 * shards * cores / cost
                full = "brokers" if by_brokers < by_shards else "mongod"
                told.append(f"{name} {min(by_brokers, by_shards):9,.0f}/s ({full} full)")
            print(f"rates, {brokers:2} brokers, {shards:2} shards: {', '.join(told)}", flush=True)


# ---------------------------------------------------------------------- duties


class Duty(NamedTuple):
    """Statements a second of one broker: for each ``database``, ``queue`` with workers, and 50 ``others``."""

    what: str
    database: float
    queue: Callable[[int], float] = lambda _brokers: 0.0
    surveyed: float = 0.0


def _looks(brokers: int) -> float:
    """Return how often one broker looks at a queue with workers, for jobs that nobody has announced."""
    return 0.0 if brokers == 0 else 1 / (1.12 * POLL if 1 < brokers <= CROWD else 0.75 * ALONE)


DUTIES = [
    Duty("heartbeat, and leases of others", 2 * 5 / LEASE),
    Duty("leases between heartbeats", 1 / LOOK),
    Duty("polls: pauses, schema, principals, schedules", 5 / (1.12 * POLL)),
    Duty("looks for jobs", 0.0, _looks),
    Duty("sweep and audit: surveys", 0.0, surveyed=2 / LEASE),
    Duty("sweep of queues in use", 0.0, lambda _brokers: 6 / LEASE),
]


def statements(duty: Duty, brokers: int, queues: int, databases: int = 1) -> float:
    """Return the statements a second of all brokers, each with workers at all queues."""
    one = duty.database * databases + duty.queue(brokers) * queues + duty.surveyed * queues / SURVEYED
    return brokers * one


def show_duties() -> None:
    """Print the statements of each duty."""
    for brokers, queues in ((1, 1000), (4, 1000), (16, 1000), (64, 100), (64, 1000)):
        print(f"duties, {brokers} brokers with workers at all of {queues} queues:")
        total = 0.0
        for duty in DUTIES:
            total += (rate := statements(duty, brokers, queues))
            print(f"  {duty.what:46} {rate:9,.0f}/s")
        print(f"  {'together':46} {total:9,.0f}/s, {total * STATEMENT:.1f} cores of mongod", flush=True)


def measure(seconds: float = 30.0) -> None:
    """Count the statements at rest, beside the model."""
    for brokers, queues in ((1, 10), (1, 50), (2, 10), (2, 50), (4, 10), (4, 50)):
        with ExitStack() as stack:
            uri = stack.enter_context(mongod())
            mongo = stack.enter_context(MongoClient[dict[str, Any]](uri))
            config = {"devices": [], "queues": {f"q{number}": {} for number in range(queues)}}
            doors = [
                stack.enter_context(BrokerProcess(uri, "bench", config=config)).doors["smq"]
                for _ in range(brokers)
            ]
            for door in doors:
                for queue in config["queues"]:
                    stack.enter_context(Worker(queue, lambda _job: None, endpoint=door))
            _await_each_other(doors)
            before = _counted(mongo)
            time.sleep(seconds)
            found = (_counted(mongo) - before) / seconds
        model = sum(statements(duty, brokers, queues) for duty in DUTIES)
        print(
            f"measured, {brokers} brokers, {queues} queues: {found:6.1f}/s, model {model:6.1f}/s", flush=True
        )


def _await_each_other(doors: list[str]) -> None:
    for door in doors:
        with Client(endpoint=door) as client:
            while client.counters()["broker"]["brokers"] < len(doors):
                time.sleep(0.1)
    time.sleep(5)


def _counted(mongo: MongoClient[dict[str, Any]]) -> float:
    counts = mongo.admin.command("serverStatus")["metrics"]["commands"]
    return float(sum(_totals(counts, {"find", "update", "aggregate", "findAndModify", "insert", "delete"})))


def _totals(counts: dict[str, Any], names: set[str]) -> Iterator[int]:
    for name in names:
        yield counts[name]["total"]


PARTS = {"waste": show_waste, "rates": show_rates, "duties": show_duties, "measure": measure}


def main() -> None:
    """Print the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS])
    for part in parser.parse_args().parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
