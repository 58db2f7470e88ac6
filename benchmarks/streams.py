"""The figures that streams promise, each beside its bound: ``python benchmarks/streams.py [PART ...]``.

Parts, each a minute or two: ``idle`` (from PUB to SUB one at a time, beside a majority insert, a relay
without a stream, and libzmq's own proxy), ``fan_out`` (to 1 and 10 SUB sockets in C: gcc, libzmq's headers),
``log`` (published, pushed, replayed, drained; NATS JetStream and Redis if ``peers.py --install`` has them),
``seek`` (any number of ten million), ``relay`` (without a stream). Each has a broker and a MongoDB of its
own; what is compared is measured in turns. Exit code 1: a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import zmq
from bson.int64 import Int64
from pymongo import MongoClient, WriteConcern

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.brokers import ANY_PORT, PAYLOAD, Way, insert, mongod
from benchmarks.peers import PEERS, Sluice, System, Tools, served  # type: ignore[attr-defined] # not the folder

from sluicemq_broker.store import StreamStore
from support.broker_process import BrokerProcess

#: Ten million messages, so many a segment.
NUMBERS, SEGMENT = 10_000_000, 64
PAUSE = 0.02
PATIENCE = 60.0
PROBE = b"probe"


class Figure(NamedTuple):
    """A value, and the least or the most it may be, if it is promised."""

    name: str
    value: float
    unit: str
    least: float = 0.0
    most: float = float("inf")

    @property
    def verdict(self) -> str:
        """Whether it is what it should be; empty: nothing is promised."""
        if not self.least and self.most == float("inf"):
            return ""
        bound = f">= {self.least:g}" if self.least else f"<= {self.most:g}"
        return f"{bound}: {'met' if self.least <= self.value <= self.most else 'MISSED'}"


def main() -> int:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000, help="to be replayed")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "sluicemq-peers")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    missed = 0
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for part in options.parts or PARTS:
        for figure in PARTS[part](options):
            value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
            print(f"{part:8} {figure.name:58} {value:>10} {figure.unit:3} {figure.verdict}", flush=True)
            missed += "MISSED" in figure.verdict
    print(f"load {os.getloadavg()[0]:.1f} at the end", flush=True)
    return 1 if missed else 0


# ------------------------------------------------------------------------ idle


def idle(options: argparse.Namespace) -> Iterator[Figure]:
    """Medians, and the ratio to the insert."""
    forwarder = {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT}
    config = {"devices": [{**forwarder, "stream": "live"}, forwarder]}
    with ExitStack() as stack:
        uri = stack.enter_context(mongod())
        broker = stack.enter_context(BrokerProcess(uri, "bench-streams", config=config))
        proxy = stack.enter_context(libzmq_proxy())
        ends = [(device["frontend"][0], device["backend"][0]) for device in broker.devices]
        ways = {
            "one majority insert": stack.enter_context(insert(uri)),
            "PUB to SUB, kept in a stream": stack.enter_context(pub_to_sub(*ends[0])),
            "PUB to SUB, relayed without one": stack.enter_context(pub_to_sub(*ends[1])),
            "PUB to SUB through libzmq's proxy": stack.enter_context(pub_to_sub(*proxy)),
        }
        took = in_turns(ways, 100 * options.rounds)
    floor, kept, *_ = (statistics.median(rates) for rates in took.values())
    for name, times in took.items():
        yield Figure(f"{name}, p50", 1000 * statistics.median(times), "ms")
    yield Figure("kept over an insert", kept / floor, "x", most=1.3)


def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, in each round once."""
    took: dict[str, list[float]] = defaultdict(list)
    for turn in range(rounds + 10):
        for name, way in ways.items():
            seconds = way()
            if turn >= 10:
                took[name].append(seconds)
            time.sleep(PAUSE)
    return took


@contextmanager
def pub_to_sub(frontend: str, backend: str) -> Iterator[Way]:
    """A PUB and a SUB socket, and one message at a time."""
    context: zmq.Context[Any] = zmq.Context.instance()
    with context.socket(zmq.PUB) as pub, context.socket(zmq.SUB) as sub:
        pub.connect(frontend)
        sub.connect(backend)
        sub.subscribe(b"")
        while not sub.poll(20):
            pub.send_multipart([PROBE, b""])
        while sub.poll(300):
            sub.recv_multipart()

        def once() -> float:
            began = time.perf_counter()
            pub.send_multipart([b"topic", PAYLOAD])
            assert sub.poll(int(PATIENCE * 1000))
            sub.recv_multipart()
            return time.perf_counter() - began

        yield once


@contextmanager
def libzmq_proxy() -> Iterator[tuple[str, str]]:
    """Its two ends."""
    command = [sys.executable, "-P", "-m", "sluicemq_bench.proxy", "forwarder"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        words = process.stderr.readline().replace(",", " ").split() if process.stderr else []
        yield words[words.index("frontend") + 1], words[words.index("backend") + 1]
    finally:
        process.terminate()
        process.communicate()


# --------------------------------------------------------------------- fan out


def fan_out(options: argparse.Namespace) -> Iterator[Figure]:
    """Messages a second to all subscribers together."""
    marks = {"hwm": 1_000_000, "hwm_bytes": 1_000_000_000}
    forwarder = {"kind": "forwarder", "stream": "live", "frontend": ANY_PORT, "backend": ANY_PORT, **marks}
    took: dict[int, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "subscribers"
        source = Path(__file__).with_name("subscribers.c")
        subprocess.run(["gcc", "-O2", "-o", program, source, "-lzmq"], check=True)
        with BrokerProcess(config={"devices": [forwarder]}) as broker:
            device = broker.devices[0]
            for _ in range(options.rounds):
                for count in (1, 10):
                    took[count].append(
                        delivered(program, device["frontend"][0], device["backend"][0], count, 50_000)
                    )
    for count, rates in took.items():
        yield Figure(f"delivered to {count} SUB sockets", statistics.median(rates), "/s")
    ratios = [ten / one for one, ten in zip(took[1], took[10], strict=True)]
    yield Figure("to 10 over to 1", statistics.median(ratios), "x", least=5)


def delivered(program: Path, frontend: str, backend: str, count: int, messages: int) -> float:
    """From the first message sent to the last one received."""
    command = [str(program), backend, str(count), str(messages)]
    context: zmq.Context[Any] = zmq.Context.instance()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink,
        context.socket(zmq.PUB) as pub,
    ):
        pub.sndhwm = 0
        pub.connect(frontend)
        out = sink.stdout
        assert out
        poller = zmq.Poller()
        poller.register(out.fileno(), zmq.POLLIN)
        while not poller.poll(20):
            pub.send_multipart([PROBE, b""])
        assert out.readline() == "ready\n"
        time.sleep(0.5)  # the last probes
        began = time.monotonic_ns()
        for _ in range(messages):
            pub.send_multipart([b"topic", PAYLOAD])
        got, ended = map(int, out.readline().split())
    if got < count * messages:
        print(f"fan_out: {count * messages - got} of {count * messages} were lost", file=sys.stderr)
    return got / ((ended - began) / 1e9)


# ------------------------------------------------------------------------- log


def log(options: argparse.Namespace) -> Iterator[Figure]:
    """Rates of streams, of the queue and of other logs."""
    tools = Tools(options.peers)
    took: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        ours = Sluice(stack.enter_context(BrokerProcess()).doors["smq"])
        others = {
            name: other(name, tools, stack) for name in ("nats", "redis") if not tools.missing(PEERS[name])
        }
        for _ in range(options.rounds):
            took["publish"] += ours.run("publish", 200_000).values()
            took["push"] += ours.run("push", 100_000).values()
            took["drain"] += ours.run("drain", 20_000).values()
            for name, system in others.items():
                for case in ("publish", "replay"):
                    took[f"{name} {case}"] += system.run(case, 20_000).values()
        took["replay"] += ours.run("replay", options.messages).values()
    rates = {name: statistics.median(values) for name, values in took.items()}
    for name, rate in rates.items():
        yield Figure(name, rate, "/s")
    replay = rates["replay"] / rates["drain"]
    yield Figure("published over pushed", rates["publish"] / rates["push"], "x", least=2)
    yield Figure(f"replay of {options.messages:,} over drained", replay, "x", least=5)
    for name in others:
        for case in ("publish", "replay"):
            ratio = rates[case] / rates[f"{name} {case}"]
            yield Figure(f"{case} over that of {name}", ratio, "x", least=1)


def other(name: str, tools: Tools, stack: ExitStack) -> System:
    """Its server, and its driver for kept messages."""
    peer = PEERS[name]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / name
    command = tools.command(replace(peer, driver=peer.streams))
    return System(command, stack.enter_context(served(peer, folder)), 1.0)


# ------------------------------------------------------------------------ seek


def seek(options: argparse.Namespace) -> Iterator[Figure]:
    """A read that begins with a number at random."""
    with mongod() as uri, MongoClient[dict[str, Any]](uri) as client:
        store = StreamStore(client["bench-seek"], "live")
        store.prepare(time.time())
        fill(client)
        random, took = Random(1), list[float]()
        for _ in range(1000 * options.rounds):
            number = random.randrange(1, NUMBERS)
            began = time.perf_counter()
            page = store.read(number, 1)
            took.append(time.perf_counter() - began)
            assert page.segments[0].first <= number < page.segments[0].next
    yield Figure("any number of 10,000,000, p50", 1000 * statistics.median(took), "ms", most=5)
    yield Figure("the same, p99", 1000 * sorted(took)[int(len(took) * 0.99)], "ms")


def fill(client: MongoClient[dict[str, Any]]) -> None:
    """Ten million messages of which nothing is stored but where they are."""
    segments = client["bench-seek"].get_collection("stream.live", write_concern=WriteConcern("majority"))
    packed = secrets.token_bytes(100)
    firsts = range(1, NUMBERS + 1, SEGMENT)
    for at in range(0, len(firsts), 10_000):
        segments.insert_many([segment(first, packed) for first in firsts[at : at + 10_000]])


def segment(first: int, packed: bytes) -> dict[str, Any]:
    """Not what a reader could unpack."""
    return {
        "_id": Int64(first),
        "count": SEGMENT,
        "at": datetime.now(UTC),
        "size": len(packed),
        "total": Int64(first),
        "mark": f"a:{first}",
        "packed": packed,
        "topics": [],
    }


# ----------------------------------------------------------------------- relay


def relay(options: argparse.Namespace) -> Iterator[Figure]:
    """A forwarder without a stream, and the proxy that comes with libzmq."""
    command = [sys.executable, "-m", "sluicemq.cli", "bench", "relay", "--device", "forwarder", "--json"]
    runs = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(options.rounds)
    ]
    yield Figure(
        "relayed, 64 bytes", statistics.median(run["jobs_per_s"] for run in runs), "/s", least=400_000
    )
    yield Figure("by libzmq's proxy", statistics.median(run["proxy_jobs_per_s"] for run in runs), "/s")


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "idle": idle,
    "fan_out": fan_out,
    "log": log,
    "seek": seek,
    "relay": relay,
}

if __name__ == "__main__":
    sys.exit(main())
