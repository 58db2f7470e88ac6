"""The figures that SluiceMQ promises, measured: ``python tests/bench/figures.py [--rounds N]``.

Starts a broker with an embedded MongoDB of its own, on free ports, and pushes 200-byte jobs
through it; prints each figure beside the least it must reach. Medians of several rounds. Producers
and workers are processes of their own, on the same cores as the broker and its MongoDB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import BrokerProcess, tcp

PROGRAM = Path(__file__).with_name("load.py")
JOBS = 50_000


def run(*arguments: object) -> float:
    """Run one load program to its end; its last line is the figure."""
    return finish(start(*arguments))


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a load program."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> float:
    """Wait for a load program; its last line is the figure."""
    out, _ = process.communicate(timeout=120)
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return float(out.split()[-1])


def confirmed_push(broker: BrokerProcess) -> float:
    """Jobs a second that one library producer gets confirmed."""
    figure = run("push", broker.doors["smq"], "pushed", JOBS)
    run("purge", broker.doors["smq"], "pushed")
    return figure


def through_library_worker(broker: BrokerProcess) -> float:
    """Jobs a second, pushed and committed at once, through one library worker with prefetch 1,024."""
    worker = start("work", broker.doors["smq"], "worked", JOBS, 1024)
    assert worker.stdout
    worker.stdout.readline()
    producer = start("push", broker.doors["smq"], "worked", JOBS)
    figure = finish(worker)
    finish(producer)
    return figure


def through_rep_workers(broker: BrokerProcess) -> float:
    """Jobs a second, pushed and committed at once, through four plain REP workers."""
    jobs = 8_000
    workers = [start("rep", broker.doors["rep"]) for _ in range(4)]
    try:
        for worker in workers:
            assert worker.stdout
            worker.stdout.readline()
        return run("through", broker.doors["smq"], "default", jobs)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def push_to_worker_ms(broker: BrokerProcess) -> float:
    """Median milliseconds from a push to the handler of an idle library worker."""
    return run("latency", broker.doors["smq"], "idle", 300)


def cpu_at_rest(broker: BrokerProcess) -> float:
    """Percent of one core that the broker uses when nothing happens, over 5 s."""
    return psutil.Process(broker.pid).cpu_percent(interval=5.0)


def memory_at_rest(broker: BrokerProcess) -> float:
    """The broker's resident MB after all of this."""
    return psutil.Process(broker.pid).memory_info().rss / 2**20


def relay_alone(_broker: BrokerProcess) -> float:
    """64-byte messages a second through ``python -m devices streamer`` alone."""
    frontend, backend = tcp(), tcp()
    command = [sys.executable, "-m", "devices", "streamer", frontend, backend]
    relay = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        sink = start("pull", backend, 1_000_000)
        source = start("flood", frontend, 1_000_000)
        figure = finish(sink)
        finish(source)
        return figure
    finally:
        relay.terminate()
        relay.wait(10)


#: What is measured, its least (or most, where smaller is better), and its unit.
FIGURES: list[tuple[str, Callable[[BrokerProcess], float], str, float]] = [
    ("broker at rest, CPU of one core", cpu_at_rest, "% <", 1),
    ("broker at rest, memory", memory_at_rest, "MB <", 80),
    ("push to worker, idle, median", push_to_worker_ms, "ms <", 3),
    ("confirmed push, library", confirmed_push, "/s >", 25_000),
    ("push to commit, one library worker, prefetch 1,024", through_library_worker, "/s >", 15_000),
    ("push to commit, four REP workers", through_rep_workers, "/s >", 3_000),
    ("STREAMER alone, 64 bytes", relay_alone, "/s >", 300_000),
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
