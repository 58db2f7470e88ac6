"""How fast jobs go on to another queue: ``python benchmarks/forwards.py --jobs 30000``.

A broker with an embedded MongoDB, a queue full of 200-byte jobs, and one worker that lets each go on to the
next queue. Printed are the jobs a second from its start until all are there, once for batches and once for
one job at a time, and the processor time of broker and mongod for 1,000 jobs. Exit code 1 if batches do fewer
than 3,000 a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq import Client, Forward, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import wait_until

LEAST = 3000.0
LONGEST = 600.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=30_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(None, folder=Path(folder)) as broker:
        alone = _run(broker, options.jobs // 30, 1)
        batches = _run(broker, options.jobs, 2000)
    print(f"one by one {alone:,.0f}/s, in batches {batches:,.0f}/s, load {os.getloadavg()[0]:.1f}")
    return int(batches < LEAST)


def _run(broker: BrokerProcess, jobs: int, prefetch: int) -> float:
    first, second = f"first-{prefetch}", f"second-{prefetch}"
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(jobs):
            producer.push(first, bytes(200))
    with Client(endpoint=broker.doors["smq"]) as client:
        before, cpu = _forwarded(client), _cpu(broker)
        began = time.monotonic()
        with Worker(first, lambda _job: Forward(second), prefetch=prefetch, endpoint=broker.doors["smq"]):
            wait_until(lambda: _forwarded(client) >= before + jobs, LONGEST)
        took = time.monotonic() - began
        used = [(now - then) * 1e6 / jobs for now, then in zip(_cpu(broker), cpu, strict=True)]
        there = client.queues.get(second).ready
    assert there == jobs, f"{there} of {jobs} are there"
    cost = f"broker {used[0]:.0f} ms, mongod {used[1]:.0f} ms of CPU for 1,000"
    print(f"prefetch {prefetch}: {jobs / took:,.0f}/s, {cost}")
    return jobs / took


def _forwarded(client: Client) -> int:
    return int(client.counters().counters.get("forwarded", 0))


def _cpu(broker: BrokerProcess) -> list[float]:
    times = [psutil.Process(pid).cpu_times() for pid in (broker.pid, broker.mongod_pid)]
    return [time_used.user + time_used.system for time_used in times]


if __name__ == "__main__":
    sys.exit(main())
