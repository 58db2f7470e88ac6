"""Measures that every broker is as good as every other: ``python benchmarks/equal.py [--brokers 1 2 4]``.

Some brokers on one MongoDB (its own unless ``--uri`` names one), four producers and four workers, each in a
process with the others of its kind, spread over the brokers. The numbers of brokers take turns, in the other
direction every other round. A ratio compares with one broker in the same round:

* done: jobs from push to done, pushed and worked on at all brokers;
* apart: pushed at the first broker, worked on at the last;
* drain: jobs that were pushed before;
* slow: bursts of jobs of 5 ms each for eight threads, pushed at one broker after the other.

*Wasted* are the jobs that claims have read and another broker took first, as a share of all that they read.
*Idle* is the time for which threads have no job while one waits for a worker, as seen from outside: the share
of it that goes beyond 50 ms at a time, and the longest.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq import Client, Job, Producer, Worker
from sluicemq_broker.embedded import EmbeddedMongo
from support.broker_process import BrokerProcess

QUEUE = "bench"
CLIENTS = 4
PATIENCE = 300.0
#: Seconds without a job that an event, a claim and a delivery may take.
LATENCY = 0.05
_SPAWN = multiprocessing.get_context("spawn")

Figures = dict[str, float]
#: When a thread began and ended a job.
Turn = tuple[float, float]


class Load(NamedTuple):
    """Jobs, and how they come: ``bursts`` of them with a ``pause`` between, each taking ``seconds``.

    ``first``: they are pushed before the workers come. ``apart``: pushed and worked on at different brokers.
    """

    jobs: int
    first: bool = False
    apart: bool = False
    seconds: float = 0.0
    threads: int = 1
    prefetch: int = 500
    bursts: int = 1
    pause: float = 0.0


def loads(scale: int) -> dict[str, Load]:
    """All of them, divided by ``scale``."""
    return {
        "done": Load(60_000 // scale),
        "apart": Load(40_000 // scale, apart=True),
        "drain": Load(40_000 // scale, first=True),
        "slow": Load(3200 // scale, seconds=0.005, threads=2, prefetch=2, bursts=20 // scale, pause=0.4),
    }


# ------------------------------------------------------------------------ clients


def produce(doors: Sequence[str], load: Load, pipe: Connection) -> None:
    """Push the jobs of a load through four producers; send when each batch was confirmed."""
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(endpoint=doors[n % len(doors)])) for n in range(CLIENTS)]
        for producer in producers:
            producer.push("other", b"").wait(PATIENCE)
        pipe.send("ready")
        pipe.recv()
        confirmed: list[tuple[float, int]] = []
        began = time.monotonic()
        for number in range(load.bursts):
            time.sleep(max(0.0, began + number * load.pause - time.monotonic()))
            using = producers if load.bursts == 1 else [producers[number % CLIENTS]]
            _push(using, load.jobs // load.bursts, confirmed)
        pipe.send(sorted(confirmed))


def _push(producers: Sequence[Producer], jobs: int, confirmed: list[tuple[float, int]]) -> None:
    def push(producer: Producer) -> None:
        left = jobs // len(producers)
        while left > 0:
            count = min(left, 2000)
            receipts = producer.push_many(QUEUE, [b"." * 200] * count)
            receipts[-1].wait(PATIENCE)
            confirmed.append((time.monotonic(), count))
            left -= count

    threads = [threading.Thread(target=push, args=(producer,)) for producer in producers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(doors: Sequence[str], load: Load, pipe: Connection) -> None:
    """Work on the jobs of a load with four workers; send the turns of each thread."""
    turns: dict[tuple[int, int], list[Turn]] = defaultdict(list)
    left, lock, over = [load.jobs], threading.Lock(), threading.Event()

    def handler(number: int) -> Any:
        def handle(_job: Job) -> None:
            began = time.monotonic()
            if load.seconds:
                time.sleep(load.seconds)
            turns[number, threading.get_ident()].append((began, time.monotonic()))
            with lock:
                left[0] -= 1
                if not left[0]:
                    over.set()

        return handle

    pipe.send("ready")
    pipe.recv()
    with ExitStack() as stack:
        for number in range(CLIENTS):
            door = doors[number % len(doors)]
            prefetch, threads = load.prefetch, load.threads
            worker = Worker(QUEUE, handler(number), prefetch=prefetch, concurrency=threads, endpoint=door)
            stack.enter_context(worker)
        if not over.wait(PATIENCE):
            sys.exit(f"{left[0]} of {load.jobs} jobs are not done")
        pipe.send([list(times) for times in turns.values()])
        pipe.recv()


@contextmanager
def program(target: Any, doors: Sequence[str], load: Load) -> Iterator[Connection]:
    """A process of clients that are connected; they begin when something is sent."""
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(doors, load, there), daemon=True)
    process.start()
    there.close()
    try:
        assert here.recv() == "ready"
        yield here
    finally:
        process.kill()
        process.join()


# ------------------------------------------------------------------------- a run


def run(uri: str, brokers: int, load: Load) -> Figures:
    """Let some brokers carry a load, and measure."""
    database = f"bench-{os.urandom(4).hex()}"
    config = {"devices": [], "queues": {QUEUE: {}}}
    with ExitStack() as stack:
        processes = [stack.enter_context(BrokerProcess(uri, database, config=config)) for _ in range(brokers)]
        doors = [process.doors["smq"] for process in processes]
        _await_each_other(doors)
        pushed_at, worked_at = (doors[:1], doors[-1:]) if load.apart else (doors, doors)
        producers = stack.enter_context(program(produce, pushed_at, load))
        workers = stack.enter_context(program(work, worked_at, load))
        began = time.monotonic()
        producers.send("go")
        if load.first:
            confirmed = producers.recv()
            began = time.monotonic()
            workers.send("go")
        else:
            workers.send("go")
            confirmed = producers.recv()
        turns = workers.recv()
        took = max(end for times in turns for _, end in times) - began
        counted = [_counters(door) for door in doors]
        workers.send("enough")
    claimed, lost = (sum(counts.get(name, 0) for counts in counted) for name in ("claimed", "claims_lost"))
    figures = {"rate": load.jobs / took, "wasted": lost / max(1, claimed + lost), "claimed": claimed}
    return {**figures, **idle(confirmed, turns)} if load.seconds else figures


def _await_each_other(doors: Sequence[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    for door in doors:
        with Client(endpoint=door) as client:
            while client.counters()["broker"]["brokers"] < len(doors):
                assert time.monotonic() < deadline
                time.sleep(0.05)


def _counters(door: str) -> Figures:
    with Client(endpoint=door) as client:
        return dict(client.counters().counters)


def idle(confirmed: Sequence[tuple[float, int]], turns: Sequence[Sequence[Turn]]) -> Figures:
    """Measure how long threads had nothing while a job waited that no thread had begun."""
    changes = sorted([*confirmed, *((begin, -1) for times in turns for begin, _ in times)])
    times, waiting, left = [], [], 0
    for at, count in changes:
        left += count
        times.append(at)
        waiting.append(left)
    gaps = [
        _time_waited(times, waiting, ended, begun)
        for turns_of_one in turns
        for (_, ended), (begun, _) in itertools.pairwise(turns_of_one)
    ]
    whole = sum(times[-1][1] - times[0][0] for times in turns)
    late = sum(max(0.0, gap - LATENCY) for gap in gaps)
    return {"idle": sum(gaps) / whole, "late": late / whole, "longest": max(gaps)}


def _time_waited(times: Sequence[float], waiting: Sequence[int], ended: float, begun: float) -> float:
    """Return for how long between these times a job waited."""
    at, total = bisect.bisect_right(times, ended) - 1, 0.0
    while at < len(times) and (at < 0 or times[at] < begun):
        until = times[at + 1] if at + 1 < len(times) else begun
        if at >= 0 and waiting[at] > 0:
            total += max(0.0, min(until, begun) - max(times[at], ended))
        at += 1
    return total


# -------------------------------------------------------------------------- print


def main() -> None:
    """Print a line for each load and number of brokers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--loads", nargs="*", default=[*loads(1)])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--uri")
    options = parser.parse_args()
    with ExitStack() as stack:
        uri = options.uri or stack.enter_context(mongod())
        for name in options.loads:
            load = loads(5 if options.quick else 1)[name]
            rounds = [
                _round(uri, options.brokers[:: 1 - 2 * (number % 2)], load)
                for number in range(options.rounds)
            ]
            _show(name, options.brokers, rounds, as_json=options.json)


def _round(uri: str, brokers: Sequence[int], load: Load) -> dict[int, Figures]:
    found = {broker: run(uri, broker, load) for broker in brokers}
    first = found[min(brokers)]["rate"]
    return {broker: {"ratio": figures["rate"] / first, **figures} for broker, figures in found.items()}


def _show(name: str, brokers: Sequence[int], rounds: Sequence[dict[int, Figures]], *, as_json: bool) -> None:
    for broker in brokers:
        of_it = [one[broker] for one in rounds]
        median = {key: statistics.median(figures[key] for figures in of_it) for key in of_it[0]}
        if as_json:
            print(json.dumps({"load": name, "brokers": broker, **median, "rounds": of_it}), flush=True)
            continue
        ratios = " ".join(f"{figures['ratio']:.2f}" for figures in of_it)
        told = f"{name:6} {broker} brokers: {median['rate']:7.0f} jobs/s, {median['ratio']:.2f} ({ratios}), "
        told += f"{median['claimed']:6.0f} claimed, {100 * median['wasted']:4.1f} % wasted"
        if "late" in median:
            told += f", idle {100 * median['idle']:.1f} %, beyond {1000 * LATENCY:.0f} ms "
            told += f"{100 * median['late']:.2f} %, longest {1000 * median['longest']:.0f} ms"
        print(told, flush=True)
    print(f"load of the machine {os.getloadavg()[0]:.0f}", flush=True)


@contextmanager
def mongod() -> Iterator[str]:
    """An embedded MongoDB without a broker of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedMongo(Path(folder))
        try:
            yield store.start()
        finally:
            store.stop()


if __name__ == "__main__":
    main()
