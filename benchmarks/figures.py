"""The figures that SluiceMQ promises, measured: ``python benchmarks/figures.py [--rounds N]``.

Starts a broker with an embedded MongoDB of its own, on free ports, and has ``sluicemq bench`` push
200-byte jobs through it; prints each figure beside the least (or most) it must reach. Producers and
workers are processes of their own, on the same cores as the broker and its MongoDB. Medians of
several rounds; what is compared with a plain ``insert_one`` loop is compared inside a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pymongo
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from support.broker_process import BrokerProcess

Found = dict[str, Any]

_RATE = 100.0  # jobs a second at an idle queue
_LONG, _SHORT = 100_000, 20_000  # jobs


class Figure(NamedTuple):
    """What is promised: its value in the runs of one round, and the least or the most it may be."""

    name: str
    value: Callable[[dict[str, Found]], float]
    least: float = 0.0
    most: float = float("inf")
    unit: str = "/s"

    def is_met(self, value: float) -> bool:
        """Whether this is good enough."""
        return self.least <= value <= self.most

    @property
    def bound(self) -> str:
        """What it must be."""
        return f"> {_text(self.least)}" if self.least else f"< {_text(self.most)}"


def at_rest(broker: BrokerProcess) -> Found:
    """The broker when nothing happens: percent of one core over 5 s, and resident MB."""
    process = psutil.Process(broker.pid)
    return {"cpu": process.cpu_percent(interval=5.0), "mb": process.memory_info().rss / 2**20}


def insert_one(broker: BrokerProcess) -> Found:
    """The floor: plain majority inserts one by one; how many a second, and median ms at the idle rate."""
    with pymongo.MongoClient[Found](broker.embedded_uri) as client:
        jobs = client["floor"]["jobs"]
        loop = [_seconds_of_insert(jobs) for _ in range(500)]
        paced = []
        for _ in range(300):
            time.sleep(1 / _RATE)
            paced.append(_seconds_of_insert(jobs))
        client.drop_database("floor")
    return {"jobs_per_s": len(loop) / sum(loop), "p50": 1000 * statistics.median(paced)}


def bench(*arguments: object) -> Callable[[BrokerProcess], Found]:
    """``sluicemq bench`` at the library's door of this broker."""
    return lambda broker: _bench(*arguments, "--endpoint", broker.doors["smq"])


def alone(*arguments: object) -> Callable[[BrokerProcess], Found]:
    """``sluicemq bench`` with a broker, or a device, of its own."""
    return lambda _broker: _bench(*arguments)


RUNS: dict[str, Callable[[BrokerProcess], Found]] = {
    "rest": at_rest,
    "floor": insert_one,
    "one": bench("push", "--window", 1, "--jobs", 1000),
    "32": bench("push", "--window", 1, "--producers", 32, "--jobs", 8000),
    "latency": bench("latency", "--rate", _RATE, "--jobs", 500),
    "push": bench("push", "--jobs", _LONG),
    "drain": bench("drain", "--jobs", _SHORT),
    "both": bench("both", "--jobs", _LONG),
    "rep": alone("both", "--door", "rep", "--jobs", _SHORT),
    "reps": alone("both", "--door", "rep", "--workers", 16, "--jobs", _SHORT),
    "pull": alone("both", "--door", "pull", "--ack", "explicit", "--workers", 4, "--jobs", _SHORT),
    "streamer": alone("relay", "--device", "streamer"),
    "forwarder": alone("relay", "--device", "forwarder"),
    "queue": alone("relay", "--device", "queue"),
}


def _rate(run: str) -> Callable[[dict[str, Found]], float]:
    return lambda found: float(found[run]["jobs_per_s"])


def _of_the_floor(run: str) -> Callable[[dict[str, Found]], float]:
    return lambda found: float(found[run]["jobs_per_s"] / found["floor"]["jobs_per_s"])


def _latency(percentile: str) -> Callable[[dict[str, Found]], float]:
    return lambda found: float(found["latency"]["latency_ms"][percentile])


def _cpu(run: str) -> Callable[[dict[str, Found]], float]:
    return lambda found: float(1000 * found[run]["processes"]["broker"]["cpu_s_per_1000_jobs"])


def _of_one_insert(found: dict[str, Found]) -> float:
    return _latency("p50")(found) / float(found["floor"]["p50"])


def _most_memory(found: dict[str, Found]) -> float:
    return max(float(run["processes"]["broker"]["peak_rss_mb"]) for run in found.values() if _has_memory(run))


def _has_memory(run: Found) -> bool:
    return "broker" in run.get("processes", {})


FIGURES = [
    Figure("broker at rest, CPU of one core", lambda found: float(found["rest"]["cpu"]), most=1, unit="%"),
    Figure("broker at rest, memory", lambda found: float(found["rest"]["mb"]), most=80, unit="MB"),
    Figure("confirmed push, one library producer", _rate("push"), least=40_000),
    Figure("push one by one, of an insert_one loop", _of_the_floor("one"), least=0.9, unit="x"),
    Figure("push one by one, 32 producers, of the same", _of_the_floor("32"), least=5, unit="x"),
    Figure("drain 20,000, one library worker", _rate("drain"), least=18_000),
    Figure("push to done, one producer, one worker", _rate("both"), least=30_000),
    Figure("idle queue, push to worker, median", _latency("p50"), most=1.8, unit="ms"),
    Figure("the same, 99th percentile", _latency("p99"), most=6, unit="ms"),
    Figure("the same, median, of one insert_one at that rate", _of_one_insert, most=1.2, unit="x"),
    Figure("REP workers, 1", _rate("rep"), least=3_000),
    Figure("REP workers, 16", _rate("reps"), least=8_000),
    Figure("PULL workers with acknowledgement, 4", _rate("pull"), least=10_000),
    Figure("broker CPU of 1,000 jobs, in batches", _cpu("both"), most=25, unit="ms"),
    Figure("the same, one job a message, 16 REP workers", _cpu("reps"), most=50, unit="ms"),
    Figure("broker memory, at its peak in all of this", _most_memory, most=100, unit="MB"),
    Figure("STREAMER alone, 64 bytes", _rate("streamer"), least=400_000),
    Figure("FORWARDER alone, 64 bytes", _rate("forwarder"), least=400_000),
    Figure("QUEUE alone, 64 bytes, round trips", _rate("queue"), least=100_000),
]


def main() -> int:
    """Measure everything; exit code 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = _measured(parser.parse_args().rounds)
    table = Table(
        "figure", "median", "least .. most", "must be", title=f"{os.cpu_count()} cores, {len(rounds)} rounds"
    )
    missed = 0
    for figure in FIGURES:
        values = [figure.value(found) for found in rounds]
        median = statistics.median(values)
        missed += not figure.is_met(median)
        table.add_row(
            figure.name,
            f"{_text(median)} {figure.unit}",
            f"{_text(min(values))} .. {_text(max(values))}",
            figure.bound + ("" if figure.is_met(median) else " MISSED"),
        )
    Console(width=110).print(table)
    return 1 if missed else 0


def _measured(rounds: int) -> list[dict[str, Found]]:
    found: list[dict[str, Found]] = [{} for _ in range(rounds)]
    with BrokerProcess() as broker, Progress(console=Console(stderr=True)) as progress:
        time.sleep(1)  # let the start settle before the CPU at rest is read
        task = progress.add_task("", total=rounds * len(RUNS))
        for one in found:
            for name, run in RUNS.items():
                progress.update(task, description=name, advance=1)
                one[name] = run(broker)
    return found


def _bench(*arguments: object) -> Found:
    command = [sys.executable, "-m", "sluicemq.cli", "bench", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout))


def _seconds_of_insert(jobs: pymongo.collection.Collection[Found]) -> float:
    began = time.perf_counter()
    jobs.insert_one({"payload": bytes(200)})
    return time.perf_counter() - began


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
