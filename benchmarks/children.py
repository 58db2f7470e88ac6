"""How fast children end at their parents: ``python benchmarks/children.py --brokers 3``.

One MongoDB (its own unless ``--uri`` names one), some brokers, and at each of them a worker for children.
Printed are the children a second from the start of these workers until every parent is done, and how many of
them were worked on twice. The first children of all parents come first, so that what ends together has many
parents. ``--slow`` lets every statement of the brokers wait for so many seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, FanOut, Forward, Job, Producer, Worker
from sluicemq_broker.embedded import EmbeddedMongo
from support.broker_process import BrokerProcess
from support.waiting import wait_until

LONGEST = 300.0  # seconds
CONFIG = {"devices": [], "queues": {"parents": {}, "children": {}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parents", type=int, default=1000)
    parser.add_argument("--children", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--uri")
    options = parser.parse_args()
    with ExitStack() as stack:
        uri = options.uri or stack.enter_context(_mongod())
        if options.slow:
            proxy = stack.enter_context(CuttingProxy(uri))
            proxy.slow(lambda _command: True, options.slow)
            uri = proxy.uri
        doors = [
            stack.enter_context(BrokerProcess(uri, "bench", config=CONFIG)).doors["smq"]
            for _ in range(options.brokers)
        ]
        _run(stack, doors, options.parents, options.children)


def _run(stack: ExitStack, doors: list[str], parents: int, children: int) -> None:
    seen, lock = Counter[str](), threading.Lock()

    def work(job: Job) -> None:
        with lock:
            seen[job.id] += 1

    with Client(timeout=60.0, endpoint=doors[0]) as client:
        with Producer(endpoint=doors[0]) as producer:
            for number in range(parents):
                producer.push("parents", b"x", id=f"p{number}")
        family = FanOut(
            *[Forward("children", bytes(200), priority=200 - number) for number in range(children)]
        )
        began = time.monotonic()
        with Worker("parents", lambda _job: family, prefetch=50, endpoint=doors[0]):
            wait_until(lambda: client.queues.get("children").ready == parents * children, LONGEST)
        fanned = time.monotonic() - began
        began = time.monotonic()
        for door in doors:
            stack.enter_context(Worker("children", work, prefetch=1000, endpoint=door))
        wait_until(lambda: client.queues.get("parents").waiting == 0, LONGEST, "the end of all parents")
        took = time.monotonic() - began
    total, again = parents * children, sum(seen.values()) - parents * children
    print(
        f"{len(doors)} brokers: fanned out {total / fanned:,.0f}/s, "
        f"ended {total / took:,.0f} children/s, {again} worked on again, load {os.getloadavg()[0]:.1f}"
    )


@contextmanager
def _mongod() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        mongo = EmbeddedMongo(Path(folder))
        try:
            yield mongo.start()
        finally:
            mongo.stop()


if __name__ == "__main__":
    main()
