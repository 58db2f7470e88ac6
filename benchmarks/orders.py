"""What a long order costs the jobs beside it: ``python benchmarks/orders.py [--order purge] [--jobs N]``.

For each order it starts a broker with an embedded MongoDB and keeps one queue under load from push to done.
Then in turns, as the rate of a machine drifts within seconds: jobs are put into another queue; it is counted
what is committed at the other while nothing is ordered; and while that order is carried out. Printed is the
rate of both, the ratio of their medians, how long the orders took, and how long ``queues`` took meanwhile;
and the same of the processor time of broker and mongod for each of those jobs, the order's own among it. All
four take some four minutes. The last line says whether the jobs beside them kept :data:`LEAST` of their rate;
exit code 1 if not.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pymongo

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq import Client, Producer, UnfinishedError, Worker
from support.broker_process import BrokerProcess

FULL, LOADED = "full", "load"
STEP = 0.5  # seconds
ASKS = 4  # steps from one question for the queues to the next: to count many jobs is work, too
ROUNDS = 6
REST = 4.0  # seconds of a round without the order
SETTLE = 1.0  # seconds after jobs were put into the queue
LEAST = 0.9  # of the rate without an order is what is promised
UNDER_WAY = 2000  # jobs
LONGEST = 60.0  # seconds of one order that are looked at

#: What is in the queue, and how the order is given.
STATES = {"purge": "ready", "redrive": "dead", "delete": "ready", "expire": "ready"}


def document(number: int, order: str) -> dict[str, Any]:
    """A job as it lies in MongoDB before the order is given."""
    now = datetime.now(UTC).replace(tzinfo=None)
    job: dict[str, Any] = {
        "_id": secrets.token_hex(6),
        "state": STATES[order],
        "priority": 0,
        "eligible_at": now,
    }
    job |= {"seq": number, "attempts": 0, "created_at": now - timedelta(seconds=60), "payload": bytes(200)}
    if order == "redrive":
        job |= {"ended_at": now, "errors": []}
    if order == "expire":
        job |= {"expires_at": now}
    return job


def fill(broker: BrokerProcess, order: str, jobs: int) -> None:
    """Put the jobs where the order finds them."""
    with pymongo.MongoClient[dict[str, Any]](broker.embedded_uri) as mongo:
        queue = mongo["sluicemq"][f"queue.{FULL}"]
        for start in range(0, jobs, 5000):
            queue.insert_many([document(start + number, order) for number in range(min(5000, jobs - start))])


def load(endpoint: str) -> None:
    """Push as fast as jobs are done, and do them, until it is killed."""
    room = threading.Semaphore(UNDER_WAY)
    worker = Worker(LOADED, lambda _job: room.release(), prefetch=1000, endpoint=endpoint)
    threading.Thread(target=worker.run, daemon=True).start()
    with Producer(endpoint=endpoint) as producer:
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


def give(client: Client, order: str) -> None:
    """Order it, and follow it to its end."""
    try:
        if order == "redrive":
            client.dead_letters.redrive(FULL).result()
        else:
            getattr(client, order)(FULL)
    except UnfinishedError as error:
        client.follow(error.task)


class Window(NamedTuple):
    """Jobs a second, seconds, and processor time of a job in microseconds."""

    rate: float
    took: float
    cpu: float


class Watch:
    """What is committed meanwhile, and how long it takes to ask for the queues."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = Client(timeout=60, endpoint=broker.doors["smq"])
        self._processes = [psutil.Process(broker.pid), psutil.Process(broker.mongod_pid)]
        self.asked: list[float] = []

    def count(self, name: str) -> int:
        return int(self._client.counters()["counters"].get(name, 0))

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return sum(
            time_used.user + time_used.system for time_used in (one.cpu_times() for one in self._processes)
        )

    def window(self, goes_on: Callable[[], bool]) -> Window:
        """While that goes on; asks for the queues now and then, as somebody who watches does."""
        spent, at_first, began = self.cpu(), self.count("committed"), time.monotonic()
        steps = 0
        while goes_on() and time.monotonic() - began < LONGEST:
            time.sleep(STEP)
            steps += 1
            if steps % ASKS == 0:
                asked = time.monotonic()
                self._client.queues()
                self.asked.append(time.monotonic() - asked)
        took, jobs = time.monotonic() - began, max(1, self.count("committed") - at_first)
        return Window(jobs / took, took, (self.cpu() - spent) / jobs * 1e6)

    def rest(self) -> Window:
        """Without an order."""
        end = time.monotonic() + REST
        return self.window(lambda: time.monotonic() < end)


def one_round(broker: BrokerProcess, client: Client, watch: Watch, order: str, jobs: int) -> list[Window]:
    """Without the order, and with it."""
    if order == "expire":  # which nobody gives: it begins when there is something
        without, gone = watch.rest(), watch.count("expired")
        fill(broker, order, jobs)
        while watch.count("expired") == gone:
            time.sleep(STEP / 10)
        return [without, watch.window(lambda: watch.count("expired") < gone + jobs)]
    fill(broker, order, jobs)
    time.sleep(SETTLE)
    without = watch.rest()
    giving = threading.Thread(target=give, args=(client, order), daemon=True)
    giving.start()
    return [without, watch.window(giving.is_alive)]


def measure(order: str, jobs: int) -> float:
    """What it costs; returns what the jobs beside it kept of their rate."""
    config = {"broker": {"lease": 5.0}, "queues": {FULL: {}}}
    with BrokerProcess(config=config) as broker:
        endpoint = broker.doors["smq"]
        with loaded(endpoint), Client(timeout=60, endpoint=endpoint) as client:
            watch = Watch(broker)
            watch.rest()
            rounds = [one_round(broker, client, watch, order, jobs) for _ in range(ROUNDS)]
    without, beside = (
        Window(*map(statistics.median, zip(*windows, strict=True))) for windows in zip(*rounds, strict=True)
    )
    print(
        f"{order} of {jobs}: {beside.took:.1f} s; queues answered within {max(watch.asked):.2f} s\n"
        f"  jobs/s beside it {beside.rate:,.0f}, without it {without.rate:,.0f}, "
        f"ratio {beside.rate / without.rate:.2f}\n"
        f"  us of processor time a job beside it {beside.cpu:.0f}, without it {without.cpu:.0f}, "
        f"ratio {without.cpu / beside.cpu:.2f}",
        flush=True,
    )
    return beside.rate / without.rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", choices=STATES, action="append", help="by default all of them")
    parser.add_argument("--jobs", type=int, default=6_000, help="of each order")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        sys.exit()
    kept = {state: measure(state, arguments.jobs) for state in arguments.order or STATES}
    worst = min(kept, key=lambda state: kept[state])
    verdict = "kept" if kept[worst] >= LEAST else "MISSED"
    print(f"verdict: {verdict}: {kept[worst]:.2f} of the rate beside a {worst}, promised {LEAST}", flush=True)
    sys.exit(kept[worst] < LEAST)
