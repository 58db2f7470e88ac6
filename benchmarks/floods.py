"""Measure an honest client beside floods of strangers: ``python benchmarks/floods.py [--flood NAME ...]``.

The broker speaks CURVE, PLAIN and HTTP with TLS. An honest client pushes one job at a time and waits until
its worker has it. Another one connects again and again and asks for a ping. Then jobs go through as fast as
they can. All is measured without a flood and beside it, right after each other. Floods come from processes of
the lowest priority: they stand for other machines. Printed are milliseconds, the share of a core that the
broker used, jobs a second, and the ratios of medians and of jobs a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

import psutil

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess
from support.floods import FLOODS, PROCESSES, Target, serving

_PAUSE, _PATIENCE = 0.005, 60.0  # seconds between two jobs, and for one
_ON_THE_WAY = 500  # jobs
_SETTLED, _REST = 2.0, 5.0  # seconds of a flood before the measurement, and after it


def _flood(name: str, target: Target, until: Event) -> None:
    os.nice(19)
    FLOODS[name](target, until)


@contextmanager
def flooded(name: str, target: Target) -> Iterator[None]:
    """Flood the broker; returns once the flood has been there for some seconds."""
    until = multiprocessing.get_context("spawn").Event()
    processes = [
        multiprocessing.get_context("spawn").Process(target=_flood, args=(name, target, until), daemon=True)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        time.sleep(_SETTLED)
        yield
    finally:
        until.set()
        for process in processes:
            process.join(10)
            process.kill()


# ------------------------------------------------------------------------ measuring


class Figures(NamedTuple):
    """Milliseconds from a push until a worker has the job, and to get in; use of a core; jobs a second."""

    work: list[float]
    enter: list[float]
    core: float
    rate: float

    def __str__(self) -> str:
        p99 = sorted(self.work)[int(0.99 * len(self.work))]
        enter, longest = statistics.median(self.enter), max(self.enter)
        return (
            f"median {statistics.median(self.work):6.2f}, p99 {p99:6.1f}, get in {enter:6.1f}, "
            f"longest {longest:5.0f}, core {self.core:4.0%}, {self.rate:6,.0f} jobs/s"
        )


class Honest:
    """An honest client, with its producer and worker."""

    def __init__(self, stack: ExitStack, broker: BrokerProcess, access: dict[str, Any]) -> None:
        self._door, self._access = broker.doors["smq"], access
        self._process = psutil.Process(broker.pid)
        self._came = threading.Event()
        self._producer = stack.enter_context(Producer(**access, endpoint=self._door))
        stack.enter_context(Worker("honest", lambda _job: self._came.set(), **access, endpoint=self._door))
        self._done = threading.Semaphore(0)
        stack.enter_context(Worker("busy", lambda _job: self._done.release(), **access, endpoint=self._door))

    def measure(self, seconds: float) -> Figures:
        """Push and connect for some seconds."""
        work: list[float] = []
        enter: list[float] = []
        until = time.perf_counter() + seconds
        entering = threading.Thread(target=self._enter, args=(enter, until))
        cpu, began = self._cpu(), time.perf_counter()
        entering.start()
        while time.perf_counter() < until:
            self._came.clear()
            at = time.perf_counter()
            self._producer.push("honest", b"x" * 200)
            if not self._came.wait(_PATIENCE):
                raise TimeoutError("a job did not come")
            work.append(1000 * (time.perf_counter() - at))
            time.sleep(_PAUSE)
        core = (self._cpu() - cpu) / (time.perf_counter() - began)
        entering.join()
        return Figures(work, enter, core, self._rate(seconds / 2))

    def _rate(self, seconds: float) -> float:
        """Return how many jobs a second go through while some hundred are always on their way."""
        began, done = time.perf_counter(), 0
        for _ in range(_ON_THE_WAY):
            self._producer.push("busy", b"x" * 200)
        while time.perf_counter() - began < seconds:
            self._done.acquire()
            self._producer.push("busy", b"x" * 200)
            done += 1
        took = time.perf_counter() - began
        for _ in range(_ON_THE_WAY):
            self._done.acquire()
        return done / took

    def _enter(self, enter: list[float], until: float) -> None:
        while time.perf_counter() < until:
            at = time.perf_counter()
            with Client(timeout=_PATIENCE, **self._access, endpoint=self._door) as client:
                client.ping()
            enter.append(1000 * (time.perf_counter() - at))
            time.sleep(20 * _PAUSE)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flood", action="append", choices=FLOODS)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker, target, access = stack.enter_context(serving(folder))
        honest = Honest(stack, broker, access)
        honest.measure(2.0)
        for name in options.flood or FLOODS:
            before = honest.measure(options.seconds)
            with flooded(name, target):
                during = honest.measure(options.seconds)
            time.sleep(_REST)
            ratio = statistics.median(during.work) / statistics.median(before.work)
            print(f"{'without':24} {before}")
            print(f"{name:24} {during}; {ratio:.2f}, {during.rate / before.rate:.2f}", flush=True)


if __name__ == "__main__":
    main()
