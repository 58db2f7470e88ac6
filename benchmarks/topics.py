"""What a message costs a forwarder, with one topic and with very many: ``python benchmarks/topics.py``.

Each subscriber has all topics; messages are for one of them each, at random, with a payload in the same
frame that comes before or behind all letters. Printed is the CPU time for a message, with one topic and with
all, in turn, the median of some rounds: of the choice alone, in this process, and of a device of its own,
all of it: reading, choosing and writing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, cast

import psutil
import zmq

from sluicemq_devices.relays import Subscriber, Upstream
from sluicemq_devices.relays.subscriber import Subscribers
from sluicemq_devices.sockets import RawLane
from sluicemq_devices.zmtp import encode

ANY_PORT = "tcp://127.0.0.1:0"
COMMAND = [sys.executable, "-P", "-m", "sluicemq_devices", "forwarder", ANY_PORT, ANY_PORT]
COMMAND += ["--hwm", "1000000"]
PAYLOADS = [b"!" * 80, b"~" * 80]
LOT = 200  # messages that are chosen from at once
SHAPES: dict[str, Callable[[random.Random, int], bytes]] = {
    "one length": lambda _, number: b"topic/%08d/" % number,
    "40 lengths": lambda draw, number: b"%d/" % number + _letters(draw, draw.randint(1, 40)),
    "250 lengths": lambda draw, _: _letters(draw, draw.randint(5, 254)),
    "much in common": lambda draw, number: b"market/stocks/%06d/" % number + _letters(draw, number % 60),
    "100 lengths, each begins 50": lambda _, number: b"%d/" % (number // 100) + b"x" * (number % 100 + 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    options = parser.parse_args()
    print(f"us of CPU a message, {options.subscribers} subscribers, one topic and {options.topics:,}")
    for name in options.shape or SHAPES:
        draw = random.Random(name)
        topics = list(dict.fromkeys(SHAPES[name](draw, number) for number in range(options.topics)))
        one = sorted(topics, key=len)[len(topics) // 2 :][:1]
        kinds: list[type[Choice | Device]] = [Choice, Device]
        for what in kinds:
            with ExitStack() as stack:
                pair = [
                    stack.enter_context(closing(what(topic, options.subscribers))) for topic in (one, topics)
                ]
                costs = [[side.cost(options.messages, draw) for side in pair] for _ in range(options.rounds)]
                a, b = (statistics.median(column) for column in zip(*costs, strict=True))
                print(f"{name}: {what.__name__.lower()} {a:.2f} and {b:.2f}, {b / a:.1f} times", flush=True)


def _letters(draw: random.Random, count: int) -> bytes:
    return bytes(draw.choices(range(97, 123), k=count))


def _messages(topics: list[bytes], count: int, draw: random.Random) -> list[bytes]:
    return [topic + draw.choice(PAYLOADS) for topic in draw.choices(topics, k=count)]


class Choice:
    """The subscriptions of a device, in this process."""

    def __init__(self, topics: list[bytes], subscribers: int) -> None:
        self._topics = topics
        self._subscriptions = Subscribers(Upstream())
        for _ in range(subscribers):
            subscriber = Subscriber(cast("RawLane", None), self._subscriptions, print)
            self._subscriptions.subscribers.add(subscriber)
            subscriber.receive([encode([b"\1" + topic]) for topic in topics])

    def close(self) -> None:
        """Nothing is left of it."""

    def cost(self, count: int, draw: random.Random) -> float:
        """Microseconds of CPU for each of so many messages."""
        taken = 0
        for _ in range(count // LOT):
            lot = [encode([frame]) for frame in _messages(self._topics, LOT, draw)]
            since = time.process_time_ns()
            for _ in self._subscriptions.choose(lot):
                pass
            taken += time.process_time_ns() - since
        return taken / count / 1000


class Device:
    """A forwarder, somebody who publishes, and subscribers of all topics."""

    def __init__(self, topics: list[bytes], subscribers: int) -> None:
        self._topics = topics
        self._process = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True)
        self._context = zmq.Context(2)
        line = self._process.stderr.readline() if self._process.stderr else ""
        words = line.replace(",", " ").split()  # forwarder: frontend …, backend …
        self._publisher = self._connected(zmq.XPUB, words[words.index("frontend") + 1])
        self._subscribers: list[Any] = []
        for _ in range(subscribers):
            self._subscribers.append(socket := self._connected(zmq.SUB, words[words.index("backend") + 1]))
            for topic in topics:
                socket.subscribe(topic)
        for _ in topics:
            self._publisher.recv()
        self._wait_for_all()

    def _connected(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        socket.sndhwm = socket.rcvhwm = 0
        socket.connect(endpoint)
        return socket

    def _wait_for_all(self) -> None:
        """Until all topics of all subscribers are there: each has heard of the last one of its own."""
        last = self._topics[-1]
        for socket in self._subscribers:
            while not socket.poll(10):
                self._publisher.send(last)
        for socket in self._subscribers:
            while socket.poll(500):
                socket.recv()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()
        self._context.destroy(linger=0)

    def cost(self, count: int, draw: random.Random) -> float:
        """Microseconds of CPU for each of so many messages."""
        messages = _messages(self._topics, count, draw)
        before = self._used()
        reader = threading.Thread(target=self._read, args=(count,))
        reader.start()
        for message in messages:
            self._publisher.send(message)
        reader.join()
        return (self._used() - before) / count * 1e6

    def _read(self, count: int) -> None:
        for socket in self._subscribers:
            for _ in range(count):
                socket.recv()

    def _used(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system


if __name__ == "__main__":
    main()
