"""What it costs to look: ``python benchmarks/seeing.py [--queues N] [--json]``.

A broker with an embedded MongoDB and so many queues that hold a job each is asked for all queues, for its
stats and for one queue, 20 times each, while jobs are pushed to ten of them between the rounds. Beside the
time that an answer takes stands the CPU time of broker and mongod for it, above what they use at rest: on a
machine with nothing else to do both are about the same. Bounds are of the time; on a busy machine look
at the CPU.
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

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq import Client, Producer
from support.broker_process import BrokerProcess

TIMES = 20
PROCESSES = ("CPU of broker", "of mongod")
#: What is promised of each, in seconds.
BOUNDS = {"queues": 0.2, "stats": 0.2, "queue": 0.01, "pushed to": 0.01}


def main() -> int:
    """Measure, print, and return 1 if a median is above its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = {
        "broker": {"max_queues": options.queues + 10, "log_level": "warning"},
        "queues": {f"queue-{number:04}": {} for number in range(options.queues)},  # pushes make ten a second
    }
    with BrokerProcess(config=config) as broker, Client(timeout=60, endpoint=broker.doors["smq"]) as client:
        _fill(broker.doors["smq"], options.queues)
        first = _seconds(client.queues)
        _await_counted(client)
        figures = _measure(broker, client)
    figures["first queues"] = {"median": first, "most": first, **dict.fromkeys(PROCESSES, 0.0)}
    _show(figures, as_json=options.json)
    return int(any(figures[name]["median"] > bound for name, bound in BOUNDS.items()))


def _fill(endpoint: str, queues: int) -> None:
    with Producer(endpoint=endpoint) as producer:
        for number in range(queues):
            producer.push(f"queue-{number:04}", b"one")
        producer.flush(600)


def _await_counted(client: Client) -> None:
    while any(row.counted_ago is None for row in client.queues.list()):
        time.sleep(0.5)


def _measure(broker: BrokerProcess, client: Client) -> dict[str, dict[str, float]]:
    looks: dict[str, Callable[[], Any]] = {
        "queues": client.queues,
        "stats": client.stats,
        "queue": lambda: client.queue("queue-0500"),
        "pushed to": lambda: client.queue("queue-0005"),
        "ping": client.ping,
    }
    pids = (broker.pid, broker.mongod_pid)
    resting = _resting(pids)
    took: dict[str, list[float]] = {name: [] for name in looks}
    used: dict[str, list[list[float]]] = {name: [] for name in looks}
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(TIMES):
            for number in range(10):
                producer.push(f"queue-{number:04}", b"one more")
            producer.flush(60)
            for name, look in looks.items():
                before = cpu_seconds(pids)
                took[name].append(_seconds(look))
                at_rest = [share * took[name][-1] for share in resting]
                used[name].append(
                    [b - a - r for a, b, r in zip(before, cpu_seconds(pids), at_rest, strict=True)]
                )
            time.sleep(0.5)
    return {
        name: {
            "median": statistics.median(seconds),
            "most": max(seconds),
            **{
                of: statistics.median(values)
                for of, values in zip(PROCESSES, zip(*used[name], strict=True), strict=True)
            },
        }
        for name, seconds in took.items()
    }


def _resting(pids: tuple[int, ...]) -> list[float]:
    """CPU seconds a second of each, while nobody asks."""
    before = cpu_seconds(pids)
    time.sleep(3)
    return [(b - a) / 3 for a, b in zip(before, cpu_seconds(pids), strict=True)]


def cpu_seconds(pids: tuple[int, ...]) -> list[float]:
    """CPU seconds of each process until now, to the microsecond (psutil knows hundredths of a second)."""
    return [sum(map(_of_thread, Path(f"/proc/{pid}/task").iterdir())) for pid in pids]


def _of_thread(thread: Path) -> float:
    try:
        return int((thread / "schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # it has just ended
        return 0.0


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
        parts = (f"{key} {figure[key] * 1000:7.1f}" for key in ("median", "most", *PROCESSES))
        print(f"{name:14} ms: {'  '.join(parts)}{bound}")


if __name__ == "__main__":
    sys.exit(main())
