"""Measure honest clients beside a flood: ``python benchmarks/crowds.py [--attack NAME ...]``.

A process with 100 connections sends one request again and again, as fast as it is read, and throws the
answers away. Beside it two honest clients ask one thing at a time: a ping, and a push that waits until it is
durable. Prints the median and the longest time of each in milliseconds: idle, beside the flood, and after it
has left.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq import Client, Producer
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.raw_sockets import GREETING
from support.raw_zmtp import hear_handshake

_CHUNK = 65_536  # bytes that a connection sends at once
_IDLE, _PAUSE = 2.0, 0.005  # seconds of a measurement at rest, and between two honest requests
_LONG = 256  # bytes from which a frame has a size of eight bytes


class Attack(NamedTuple):
    """Sockets of one kind at one door, and the messages that each sends again and again."""

    door: str
    kind: bytes
    messages: bytes


def frames(*parts: bytes) -> bytes:
    """Return a message as ZMTP sends it."""
    heads = [
        struct.pack(">BB", more, len(part)) if len(part) < _LONG else struct.pack(">BQ", 2 + more, len(part))
        for part, more in zip(parts, [True] * (len(parts) - 1) + [False], strict=True)
    ]
    return b"".join(head + part for head, part in zip(heads, parts, strict=True))


def library(verb: bytes, *fields: Any, times: int = 500) -> Attack:
    """Return an attack at the library's door."""
    requests = [frames(*wire.encode(verb, number + 1, *fields)) for number in range(times)]
    return Attack("smq", b"DEALER", b"".join(requests))


ATTACKS = {
    "ping": library(wire.PING),
    "hello": library(wire.HELLO, {"client": "crowd"}),
    "result": library(wire.RESULT, "pushed", "unknown", 0.0),
    "ready": library(wire.READY, "pushed", 0, {}),
    "queue": library(wire.QUEUE, "pushed"),
    "peek": library(wire.PEEK, "pushed", "ready", 10),
    "show": library(wire.SHOW, "pushed", "unknown"),
    "extend": library(wire.EXTEND, ["none"], 10.0),
    "push": library(wire.PUSH, "flooded", [[None, b"x", None]]),
    "malformed": Attack("smq", b"DEALER", frames(b"rubbish") * 500),
    "zmtp-ping": Attack("smq", b"DEALER", b"\x04\x07\x04PING\x00\x00" * 500),
    "pull": Attack("push", b"PUSH", frames(b"x") * 500),
    "req": Attack("req", b"DEALER", frames(b"", b"flooded", b'{"reply": "accepted"}', b"x") * 100),
    "publish": Attack("pub", b"PUB", frames(b"topic", b"x") * 500),
    "commit": Attack("commit", b"PUSH", frames(b"COMMIT", b"unknown") * 500),
}


def flood(address: str, attack: Attack, count: int, ready: Event, until: Event) -> None:
    """Send from ``count`` connections as fast as they are read, until told to stop."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        selector.register(connected(address, attack.kind), selectors.EVENT_READ | selectors.EVENT_WRITE, [0])
    ready.set()
    messages = attack.messages * (1 + 2 * _CHUNK // len(attack.messages))
    while not until.is_set():
        for key, events in selector.select(0.1):
            with suppress(BlockingIOError):
                goes_on = turn(key.fileobj, events, key.data, messages, len(attack.messages))
                if not goes_on:
                    selector.unregister(key.fileobj)


def connected(address: str, kind: bytes) -> socket.socket:
    """Return a socket after its handshake, which never blocks from then on."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    one = socket.create_connection((host, int(port)))
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    one.sendall(GREETING + b"\x04" + bytes([len(body)]) + body)
    hear_handshake(one)
    one.settimeout(0)
    return one


def turn(one: Any, events: int, place: list[int], messages: bytes, size: int) -> bool:
    """Read and write what is possible; ``place``: where in the messages it goes on. False: it was cut."""
    try:
        if events & selectors.EVENT_READ and not one.recv(1 << 20):
            return False
        if events & selectors.EVENT_WRITE:
            place[0] = (place[0] + one.send(messages[place[0] : place[0] + _CHUNK])) % size
    except ConnectionError:
        return False
    return True


def measure(honest: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each request of each honest client, which all ask at once."""
    end = time.monotonic() + seconds
    took: dict[str, list[float]] = {name: [] for name in honest}

    def ask(name: str) -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            honest[name]()
            took[name].append(1000 * (time.perf_counter() - began))
            time.sleep(_PAUSE)

    threads = [threading.Thread(target=ask, args=(name,)) for name in honest]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def show(attack: str, when: str, took: dict[str, list[float]], broker: BrokerProcess) -> None:
    """Print one line."""
    told = "  ".join(
        f"{name} {statistics.median(times):6.2f} ms (max {max(times):.0f})" for name, times in took.items()
    )
    mib = psutil.Process(broker.pid).memory_info().rss >> 20
    print(f"{attack:10} {when:14} {told}  broker {mib} MiB", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attack", nargs="*", choices=list(ATTACKS), default=["ping", "result", "push"])
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    streamer = {"kind": "streamer", "frontend": tcp(), "backend": tcp(), "commit": tcp(), "ack": "explicit"}
    others = [{"kind": kind, "frontend": tcp(), "backend": tcp()} for kind in ("queue", "forwarder")]
    config = {"devices": [streamer, *others], "broker": {"log_level": "error"}}
    spawn = multiprocessing.get_context("spawn")
    with (
        BrokerProcess(config=config) as broker,
        Client(timeout=60, endpoint=broker.doors["smq"]) as client,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        honest: dict[str, Callable[[], Any]] = {
            "ping": client.ping,
            "push": lambda: producer.push("pushed", b"one").wait(60),
        }
        measure(honest, 0.5)
        for name in options.attack:
            show(name, "idle", measure(honest, _IDLE), broker)
            ready, until = spawn.Event(), spawn.Event()
            arguments = (broker.doors[ATTACKS[name].door], ATTACKS[name], options.connections, ready, until)
            process = spawn.Process(target=flood, args=arguments)
            process.start()
            ready.wait(60)
            show(name, "beside it", measure(honest, options.seconds), broker)
            until.set()
            process.join()
            show(name, "after it left", measure(honest, _IDLE), broker)


if __name__ == "__main__":
    main()
