"""The figures that SluiceMQ promises, measured: ``python tests/bench/figures.py [--rounds N]``.

Starts a broker with an embedded MongoDB of its own, on free ports, and has ``sluicemq bench`` push
200-byte jobs through it; prints each figure beside the least it must reach. Medians of several
rounds. Producers and workers are processes of their own, on the same cores as the broker and its
MongoDB.
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
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import BrokerProcess


def bench(*arguments: object) -> dict[str, Any]:
    """What ``sluicemq bench`` finds."""
    command = [sys.executable, "-m", "sluicemq.cli", "bench", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout))


def confirmed_push(broker: BrokerProcess) -> float:
    """Jobs a second that one library producer gets confirmed."""
    return float(bench("push", "--endpoint", broker.doors["smq"])["jobs_per_s"])


def through_library_worker(broker: BrokerProcess) -> float:
    """Jobs a second, pushed and committed at once, through one library worker with prefetch 1,024."""
    return float(bench("both", "--endpoint", broker.doors["smq"])["jobs_per_s"])


def through_rep_workers(broker: BrokerProcess) -> float:
    """Jobs a second, pushed and committed at once, through four plain REP workers."""
    doors = ["--endpoint", broker.doors["smq"], "--backend", broker.doors["rep"]]
    return float(bench("both", "--door", "rep", "--workers", 4, "--jobs", 8_000, *doors)["jobs_per_s"])


def push_to_worker_ms(broker: BrokerProcess) -> float:
    """Median milliseconds from a push to the handler of an idle library worker."""
    found = bench("latency", "--jobs", 300, "--endpoint", broker.doors["smq"])
    return float(found["latency_ms"]["p50"])


def cpu_at_rest(broker: BrokerProcess) -> float:
    """Percent of one core that the broker uses when nothing happens, over 5 s."""
    return psutil.Process(broker.pid).cpu_percent(interval=5.0)


def memory_at_rest(broker: BrokerProcess) -> float:
    """The broker's resident MB after all of this."""
    return psutil.Process(broker.pid).memory_info().rss / 2**20


def relay_alone(device: str, _broker: BrokerProcess) -> float:
    """64-byte messages (of a queue: round trips) a second through ``python -m devices`` alone."""
    return float(bench("relay", "--device", device)["jobs_per_s"])


#: What is measured, its least (or most, where smaller is better), and its unit.
FIGURES: list[tuple[str, Callable[[BrokerProcess], float], str, float]] = [
    ("broker at rest, CPU of one core", cpu_at_rest, "% <", 1),
    ("broker at rest, memory", memory_at_rest, "MB <", 80),
    ("push to worker, idle, median", push_to_worker_ms, "ms <", 3),
    ("confirmed push, library", confirmed_push, "/s >", 25_000),
    ("push to commit, one library worker, prefetch 1,024", through_library_worker, "/s >", 15_000),
    ("push to commit, four REP workers", through_rep_workers, "/s >", 3_000),
    ("STREAMER alone, 64 bytes", partial(relay_alone, "streamer"), "/s >", 400_000),
    ("FORWARDER alone, 64 bytes", partial(relay_alone, "forwarder"), "/s >", 400_000),
    ("QUEUE alone, 64 bytes, round trips", partial(relay_alone, "queue"), "/s >", 100_000),
]


def main() -> int:
    """Measure everything; exit code 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    table = Table(
        "figure", "median", "least .. most", "must be", title=f"{os.cpu_count()} cores, {rounds} rounds"
    )
    missed = 0
    with BrokerProcess() as broker:
        time.sleep(1)  # let the start settle before the CPU at rest is read
        for name, measure, unit, bound in track(FIGURES, "measuring", console=Console(stderr=True)):
            values = [measure(broker) for _ in range(rounds)]
            median = statistics.median(values)
            met = median < bound if "<" in unit else median > bound
            missed += not met
            table.add_row(
                name,
                f"{median:,.2f}" if median < 100 else f"{median:,.0f}",
                f"{min(values):,.1f} .. {max(values):,.1f}",
                f"{unit[-1]} {bound:,} {unit[:-2]} {'' if met else 'MISSED'}",
            )
    Console(width=110).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
