"""How soon one broker acts on what is done at another: ``python benchmarks/brokers.py``.

Two brokers on one MongoDB (its own unless ``--uri`` names one). In turns, a round of each with a pause behind
it: one majority insert from here; a push at one broker to a worker that waits at the other; from a PUB socket
at one to a SUB socket at the other, and at the same. Then what two brokers that do nothing cost, in processor
time, with the bus and without.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

import psutil
import zmq
from pymongo import MongoClient, WriteConcern

from sluicemq import Producer, Worker
from sluicemq_broker.embedded import EmbeddedMongo
from support.broker_process import BrokerProcess

ANY_PORT = "tcp://127.0.0.1:0"
PAYLOAD = secrets.token_bytes(200)
FORWARDER = {"kind": "forwarder", "stream": "live", "frontend": ANY_PORT, "backend": ANY_PORT}
#: Seconds between two rounds: longer than the window in which events are merged.
PAUSE = 0.08
PATIENCE = 10.0

#: One round of something, in seconds.
Way = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds")
    parser.add_argument("--event-bus", default="auto", help="as [broker] event_bus")
    parser.add_argument("--uri")
    options = parser.parse_args()
    with ExitStack() as stack:
        uri = options.uri or stack.enter_context(mongod())
        latency(uri, options.event_bus, options.rounds)
        idle(uri, options.event_bus, options.idle)


def latency(uri: str, events: str, rounds: int) -> None:
    with ExitStack() as stack:
        one, other = two(stack, uri, events)
        ways: dict[str, Way] = {
            "one majority insert": stack.enter_context(insert(uri)),
            "push at A to worker at B": stack.enter_context(push(one, other)),
            "PUB at A to SUB at B": stack.enter_context(publish(one, other)),
            "PUB at A to SUB at A": stack.enter_context(publish(one, one)),
        }
        took: dict[str, list[float]] = defaultdict(list)
        for turn in range(rounds + 10):
            for name, way in ways.items():
                seconds = way()
                if turn >= 10:
                    took[name].append(seconds)
                time.sleep(PAUSE)
        floor = statistics.median(took["one majority insert"])
        for name, times in took.items():
            p50, p99 = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
            print(
                f"{name:26} p50 {1000 * p50:6.2f} ms, p99 {1000 * p99:7.2f} ms, {p50 / floor:.1f}x",
                flush=True,
            )


def idle(uri: str, events: str, seconds: float) -> None:
    for form in ("off", events):
        with ExitStack() as stack:
            both = [psutil.Process(broker.pid) for broker in two(stack, uri, form)]
            time.sleep(3)
            before = [cpu(pid) for pid in both]
            time.sleep(seconds)
            shares = [
                100 * (cpu(process) - then) / seconds for process, then in zip(both, before, strict=True)
            ]
            told = ", ".join(f"{share:.2f} %" for share in shares)
            print(f"at rest, event_bus = {form}: {told} of a core each", flush=True)


@contextmanager
def mongod() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedMongo(Path(folder))
        try:
            yield store.start()
        finally:
            store.stop()


def two(stack: ExitStack, uri: str, events: str) -> list[BrokerProcess]:
    """Two brokers on a database of their own."""
    database = f"bench-{secrets.token_hex(4)}"
    mongo = stack.enter_context(MongoClient[dict[str, Any]](uri))
    stack.callback(mongo.drop_database, database)
    config = {"broker": {"event_bus": events}, "devices": [FORWARDER]}
    return [stack.enter_context(BrokerProcess(uri, database, config=config)) for _ in "12"]


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def insert(uri: str) -> Iterator[Way]:
    with MongoClient[dict[str, Any]](uri) as client:
        plain = client["bench"].get_collection("plain", write_concern=WriteConcern("majority"))

        def once() -> float:
            began = time.perf_counter()
            plain.insert_one({"payload": PAYLOAD})
            return time.perf_counter() - began

        yield once
        client.drop_database("bench")


@contextmanager
def push(one: BrokerProcess, other: BrokerProcess) -> Iterator[Way]:
    came, at = threading.Event(), [0.0]

    def handler(_job: object) -> None:
        at[0] = time.perf_counter()
        came.set()

    with (
        Producer(endpoint=one.doors["smq"]) as producer,
        Worker("bench", handler, prefetch=4, endpoint=other.doors["smq"]),
    ):

        def once() -> float:
            came.clear()
            began = time.perf_counter()
            producer.push("bench", PAYLOAD)
            assert came.wait(PATIENCE)
            return at[0] - began

        yield once


@contextmanager
def publish(one: BrokerProcess, other: BrokerProcess) -> Iterator[Way]:
    context: zmq.Context[Any] = zmq.Context.instance()
    topic = secrets.token_bytes(4)
    with context.socket(zmq.PUB) as pub, context.socket(zmq.SUB) as sub:
        pub.connect(one.devices[0]["frontend"][0])
        sub.connect(other.devices[0]["backend"][0])
        sub.subscribe(topic)
        while not sub.poll(20):
            pub.send_multipart([topic, b""])
        while sub.poll(300):
            sub.recv_multipart()

        def once() -> float:
            began = time.perf_counter()
            pub.send_multipart([topic, PAYLOAD])
            assert sub.poll(int(PATIENCE * 1000))
            sub.recv_multipart()
            return time.perf_counter() - began

        yield once


if __name__ == "__main__":
    main()
