"""How soon others go on after a kill: ``python benchmarks/takeover.py [--rounds 5] [--lease 15]``.

Each round kills one thing with ``kill -9``, with a MongoDB of its own:

* broker: one of two brokers, whose worker has five jobs. The time until all five are at a worker of the other
  one, beyond the lease;
* producer: the broker that a producer with two endpoints is connected to. The longest time between two of its
  confirmed pushes;
* primary: the primary of a replica set of three nodes. The time until a push is confirmed that was begun
  after the kill, beyond the time until a node says that it is the primary.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.equal import mongod

from faults.replica_set import ReplicaSet
from sluicemq import Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import wait_until

RUNNING = 5
PATIENCE = 120.0


def broker(lease: float) -> float:
    """Return how long after the lease the jobs of a killed broker are at another worker."""
    begun: dict[str, float] = {}
    held, over = set[str](), threading.Event()

    def hold(job: Job) -> None:
        held.add(job.id)
        over.wait(PATIENCE)

    def take(job: Job) -> None:
        begun.setdefault(job.id, time.monotonic())

    with ExitStack() as stack:
        uri = stack.enter_context(mongod())
        first, second = (
            stack.enter_context(BrokerProcess(uri, "bench", config={"broker": {"lease": lease}}))
            for _ in range(2)
        )
        stack.callback(over.set)
        stack.enter_context(
            Worker("default", hold, prefetch=5, concurrency=RUNNING, endpoint=first.doors["smq"])
        )
        with Producer(endpoint=first.doors["smq"]) as producer:
            for _ in range(RUNNING):
                producer.push("default", b"").wait(PATIENCE)
        wait_until(lambda: len(held) == RUNNING, PATIENCE)
        stack.enter_context(Worker("default", take, prefetch=20, endpoint=second.doors["smq"]))
        # At any moment between two of its heartbeats.
        time.sleep(lease / 5 * (1 + int.from_bytes(os.urandom(2)) / 65536))
        killed = time.monotonic()
        first.kill()
        wait_until(lambda: begun.keys() >= held, PATIENCE)
        return max(begun[job] for job in held) - killed - lease


def producer(_lease: float) -> float:
    """Return the longest time between two confirmed pushes, one of two brokers being killed meanwhile."""
    with ExitStack() as stack:
        uri = stack.enter_context(mongod())
        brokers = [stack.enter_context(BrokerProcess(uri, "bench")) for _ in range(2)]
        doors = [node.doors["smq"] for node in brokers]
        pushing = stack.enter_context(Producer(endpoint=",".join(doors)))
        longest = 0.0
        for number in range(400):
            began = time.monotonic()
            if number == 100:
                brokers[doors.index(pushing.connected_to)].kill()
            pushing.push("default", b"").wait(PATIENCE)
            longest = max(longest, time.monotonic() - began)
        return longest


def primary(_lease: float) -> float:
    """Return how long after the election a push is confirmed that was begun after the kill."""
    with (
        ReplicaSet(3) as mongo,
        BrokerProcess(mongo.uri, "bench") as only,
        Producer(endpoint=only.doors["smq"]) as client,
    ):
        client.push("default", b"").wait(PATIENCE)
        elected: list[float] = []
        mongo.kill(mongo.primary())
        watching = threading.Thread(target=lambda: elected.append(_elected(mongo)))
        watching.start()
        client.push("default", b"").wait(PATIENCE)
        confirmed = time.monotonic()
        watching.join()
        return confirmed - elected[0]


def _elected(mongo: ReplicaSet) -> float:
    mongo.primary()
    return time.monotonic()


PARTS: dict[str, tuple[Callable[[float], float], str]] = {
    "broker": (broker, "its jobs are with others, after the lease"),
    "producer": (producer, "longest wait of a producer"),
    "primary": (primary, "intake goes on, after the election"),
}


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lease", type=float, default=15.0)
    options = parser.parse_args()
    for part in options.parts:
        measure, what = PARTS[part]
        found = [measure(options.lease) for _ in range(options.rounds)]
        listed = " ".join(f"{seconds:.2f}" for seconds in found)
        print(
            f"{part}: {what}: median {statistics.median(found):.2f} s, most {max(found):.2f} s ({listed}), "
            f"load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
