"""What a message costs a forwarder, with one topic and with very many: ``python tests/bench/topics.py``.

One subscriber has all topics; messages are for one of them each, at random. Printed is the CPU time of the
device for a message, all of it: reading, choosing and writing. Three rounds, alternating.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing

import psutil
import zmq

ANY_PORT = "tcp://127.0.0.1:0"
COMMAND = [
    sys.executable,
    "-P",
    "-m",
    "sluicemq_devices",
    "forwarder",
    ANY_PORT,
    ANY_PORT,
    "--hwm",
    "1000000",
]
PAYLOAD = b"x" * 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cases: list[tuple[str, int, Callable[[random.Random, int], bytes]]] = [
        ("one topic", 1, _of_one_length),
        (f"{options.topics:,} topics of one length", options.topics, _of_one_length),
        (f"{options.topics:,} topics of many lengths", options.topics, _of_many_lengths),
    ]
    for _ in range(options.rounds):
        for name, count, make in cases:
            draw = random.Random(count)
            topics = list({make(draw, number) for number in range(count)})
            print(f"{name}: {_cost(topics, options.messages):.2f} us", flush=True)


def _of_one_length(_draw: random.Random, number: int) -> bytes:
    return b"topic/%08d/" % number


def _of_many_lengths(draw: random.Random, number: int) -> bytes:
    return b"%d/" % number + bytes(draw.choices(range(97, 123), k=draw.randint(1, 40)))


def _cost(topics: list[bytes], count: int) -> float:
    """Microseconds of CPU of a device for each of so many messages."""
    device = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True)
    context = zmq.Context(2)
    try:
        line = device.stderr.readline() if device.stderr else ""  # forwarder: frontend …, backend …
        words = line.replace(",", " ").split()
        with closing(context.socket(zmq.XPUB)) as publisher, closing(context.socket(zmq.SUB)) as subscriber:
            for socket in (publisher, subscriber):
                socket.sndhwm = socket.rcvhwm = 0
            subscriber.connect(words[words.index("backend") + 1])
            for topic in topics:
                subscriber.subscribe(topic)
            publisher.connect(words[words.index("frontend") + 1])
            for _ in topics:
                publisher.recv()
            return _publish(device.pid, publisher, subscriber, random.Random(1).choices(topics, k=count))
    finally:
        device.terminate()
        device.communicate()
        context.destroy(linger=0)


def _publish(
    pid: int, publisher: zmq.Socket[bytes], subscriber: zmq.Socket[bytes], topics: list[bytes]
) -> float:
    reader = threading.Thread(target=lambda: [subscriber.recv() for _ in topics])
    times = psutil.Process(pid).cpu_times
    before = times()
    reader.start()
    for topic in topics:
        publisher.send(topic + PAYLOAD)
    reader.join()
    after = times()
    return (after.user + after.system - before.user - before.system) / len(topics) * 1e6


if __name__ == "__main__":
    main()
