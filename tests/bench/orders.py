"""What a long order costs the jobs beside it: ``python tests/bench/orders.py [--order purge] [--jobs N]``.

For each order it starts a broker with an embedded MongoDB, fills one queue with jobs, keeps another one under
load from push to done, and counts what is committed in each half second: without the order, while it is
carried out, and after it. Printed is the rate of both, their ratio, how long the order took, and how long
``queues`` took meanwhile; and the same of the processor time of broker and mongod for each of those jobs, the
order's own among it: that swings less where other programs run. All four take some two minutes. The last
line says whether the jobs beside them kept :data:`LEAST` of their rate; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pymongo

sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import BrokerProcess
from sluicemq import Client, Producer, Unfinished, Worker

FULL, LOADED = "full", "load"
STEP = 0.5  # seconds
QUIET = 6.0  # seconds without the order, before and after it
LEAST = 0.9  # of the rate without an order is what is promised
UNDER_WAY = 2000  # jobs
LONGEST = 25.0  # seconds of an order that are looked at

#: What is in the queue, and how the order is given.
STATES = {"purge": "ready", "redrive": "dead", "delete": "ready", "expire": "ready"}


def document(number: int, order: str) -> dict[str, Any]:
    """A job as it lies in MongoDB before the order is given."""
    now = datetime.now(UTC).replace(tzinfo=None)
    job: dict[str, Any] = {"_id": f"job-{number}", "state": STATES[order], "priority": 0, "eligible_at": now}
    job |= {"seq": number, "attempts": 0, "created_at": now - timedelta(seconds=60), "payload": bytes(200)}
    if order == "redrive":
        job |= {"ended_at": now, "errors": []}
    if order == "expire":
        job |= {"expires_at": now}
    return job


def fill(broker: BrokerProcess, order: str, jobs: int) -> None:
    """Put the jobs where the order finds them."""
    with Producer(broker.doors["smq"]) as producer:
        producer.push(FULL, b"makes the queue", delay=3600)
    port = (broker.folder / "data" / "mongod.port").read_text()
    with pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/?directConnection=true") as mongo:
        queue = mongo["sluicemq"][f"queue.{FULL}"]
        for start in range(0, jobs, 5000):
            queue.insert_many([document(start + each, order) for each in range(min(5000, jobs - start))])


def load(endpoint: str) -> None:
    """Push as fast as jobs are done, and do them, until it is killed."""
    room = threading.Semaphore(UNDER_WAY)
    worker = Worker(endpoint, LOADED, lambda _job: room.release(), prefetch=1000)
    threading.Thread(target=worker.run, daemon=True).start()
    with Producer(endpoint) as producer:
        while True:
            room.acquire()
            producer.push(LOADED, bytes(200))


@contextmanager
def loaded(endpoint: str) -> Iterator[None]:
    """A producer and a worker at full speed, in a process of their own."""
    command = [sys.executable, __file__, "--load", endpoint]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def give(client: Client, order: str, over: threading.Event) -> None:
    """Order it, and follow it to its end; what has expired nobody orders."""
    try:
        if order == "expire":
            while client.queue(FULL)["ready"] > 0:
                time.sleep(STEP)
        elif order == "redrive":
            client.redrive(FULL)
        else:
            getattr(client, order)(FULL)
    except Unfinished as error:
        client.follow(error.task)
    over.set()


class Window(NamedTuple):
    """Jobs a second in each step, and processor time of a job in microseconds."""

    rates: list[float]
    cpu: float


class Watch:
    """What is committed in each step, and how long it takes to ask for the queues."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = Client(broker.doors["smq"], timeout=60)
        self._processes = [psutil.Process(broker.pid), psutil.Process(broker.mongod_pid)]
        self.asked: list[float] = []

    def committed(self) -> int:
        return int(self._client.stats()["counters"].get("committed", 0))

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return sum(each.user + each.system for each in (one.cpu_times() for one in self._processes))

    def window(self, over: threading.Event, most: float) -> Window:
        """What goes on until it is over, or for so long."""
        spent, at_first = self.cpu(), self.committed()
        rates = self.rates(over, most)
        return Window(rates, (self.cpu() - spent) / max(1, self.committed() - at_first) * 1e6)

    def rates(self, over: threading.Event, most: float) -> list[float]:
        """Jobs a second, step by step."""
        rates, end = [], time.monotonic() + most
        before, since = self.committed(), time.monotonic()
        while not over.is_set() and time.monotonic() < end:
            over.wait(STEP)
            began = time.monotonic()
            self._client.queues()
            self.asked.append(time.monotonic() - began)
            now, at = self.committed(), time.monotonic()
            rates.append((now - before) / (at - since))
            before, since = now, at
        return rates


def measure(order: str, jobs: int) -> float:
    """One order, and what it costs; returns what the jobs beside it kept of their rate."""
    with BrokerProcess(config={"broker": {"lease": 5.0}}) as broker:
        endpoint = broker.doors["smq"]
        if order != "expire":
            fill(broker, order, jobs)
        with loaded(endpoint), Client(endpoint, timeout=3) as client:
            watch, never, over = Watch(broker), threading.Event(), threading.Event()
            watch.rates(never, QUIET / 2)
            before = watch.window(never, QUIET)
            if order == "expire":
                fill(broker, order, jobs)
            watch.asked.clear()
            began = time.monotonic()
            threading.Thread(target=give, args=(client, order, over), daemon=True).start()
            during = watch.window(over, LONGEST)
            took = time.monotonic() - began
            asked = max(watch.asked, default=0.0)
            after = watch.window(never, QUIET) if over.is_set() else before
    without, beside = (
        statistics.mean(before.rates + after.rates),
        statistics.mean(during.rates or before.rates),
    )
    cpu = (before.cpu + after.cpu) / 2
    ended = "" if over.is_set() else ", not over"
    print(
        f"{order} of {jobs}: {took:.1f} s{ended}; queues answered within {asked:.2f} s\n"
        f"  jobs/s beside it {beside:,.0f}, without it {without:,.0f}, ratio {beside / without:.2f}\n"
        f"  us of processor time a job beside it {during.cpu:.0f}, without it {cpu:.0f} "
        f"({before.cpu:.0f}, {after.cpu:.0f}), ratio {cpu / during.cpu:.2f}",
        flush=True,
    )
    return beside / without


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", choices=STATES, action="append", help="by default all of them")
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        sys.exit()
    kept = {each: measure(each, arguments.jobs) for each in arguments.order or STATES}
    worst = min(kept, key=lambda each: kept[each])
    verdict = "kept" if kept[worst] >= LEAST else "MISSED"
    print(f"verdict: {verdict}: {kept[worst]:.2f} of the rate beside a {worst}, promised {LEAST}", flush=True)
    sys.exit(kept[worst] < LEAST)
