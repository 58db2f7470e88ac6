"""What it costs to look: ``python tests/bench/seeing.py [--queues N] [--json]``.

A broker with an embedded MongoDB and so many queues that hold a job each is asked for all queues, for its
stats and for one queue, 20 times each, while jobs are pushed to ten of them. Beside the time that an answer
takes stands the CPU time of broker and mongod until it is there: on a machine with nothing else to do the two
are about the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import BrokerProcess
from sluicemq import Client, Producer

TIMES = 20
#: What is promised of each, in seconds.
BOUNDS = {"queues": 0.2, "stats": 0.2, "queue": 0.01}


def main() -> int:
    """Measure, print, and return 1 if a median is above its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = {"broker": {"max_queues": options.queues + 10, "log_level": "warning"}}
    with BrokerProcess(config=config) as broker, Client(broker.doors["smq"], timeout=60) as client:
        _fill(broker.doors["smq"], options.queues)
        first = _seconds(client.queues)
        _await_counted(client)
        figures = _measure(broker, client)
    figures["first queues"] = {"median": first, "most": first, "cpu": 0.0}
    _show(figures, as_json=options.json)
    return int(any(figures[name]["median"] > bound for name, bound in BOUNDS.items()))


def _fill(endpoint: str, queues: int) -> None:
    with Producer(endpoint) as producer:
        for number in range(queues):
            producer.push(f"queue-{number:04}", b"one")
        producer.flush(600)


def _await_counted(client: Client) -> None:
    while any(row["counted_ago"] is None for row in client.queues()):
        time.sleep(0.5)


def _measure(broker: BrokerProcess, client: Client) -> dict[str, dict[str, float]]:
    processes = [psutil.Process(broker.pid), psutil.Process(broker.mongod_pid)]
    looks: dict[str, Callable[[], Any]] = {
        "queues": client.queues,
        "stats": client.stats,
        "queue": lambda: client.queue("queue-0500"),
        "ping": client.ping,
    }
    took: dict[str, list[float]] = {name: [] for name in looks}
    used = dict.fromkeys(looks, 0.0)
    with Producer(broker.doors["smq"]) as producer:
        for _ in range(TIMES):
            for number in range(10):
                producer.push(f"queue-{number:04}", b"one more")
            for name, look in looks.items():
                before = _cpu(processes)
                took[name].append(_seconds(look))
                used[name] += _cpu(processes) - before
            time.sleep(0.5)
    return {
        name: {"median": statistics.median(seconds), "most": max(seconds), "cpu": used[name] / TIMES}
        for name, seconds in took.items()
    }


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in processes)


def _seconds(look: Callable[[], Any]) -> float:
    began = time.monotonic()
    look()
    return time.monotonic() - began


def _show(figures: dict[str, dict[str, float]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        bound = f"  bound {BOUNDS[name] * 1000:.0f}" if name in BOUNDS else ""
        median, most, cpu = (figure[key] * 1000 for key in ("median", "most", "cpu"))
        print(f"{name:14} ms: median {median:7.1f}  most {most:7.1f}  CPU {cpu:7.1f}{bound}")


if __name__ == "__main__":
    sys.exit(main())
