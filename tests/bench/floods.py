"""Measure an honest client beside floods of strangers: ``python tests/bench/floods.py [--flood NAME ...]``.

The broker speaks CURVE, PLAIN and HTTP with TLS. An honest client pushes one job at a time and waits until
its worker has it. Another one connects again and again and asks for a ping. Both are measured without a flood
and beside it, right after each other. Floods come from processes of the lowest priority: they stand for other
machines.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from sluicemq import Client, Producer, Worker
from sluicemq.protocol.keys import KEY_BYTES, KeyPair, encode, read_key, read_key_file, write_key_file
from sluicemq_broker.security import hash_password
from sluicemq_devices.zmtp.curve.client import CurveClient
from sluicemq_devices.zmtp.curve.sodium import public_of
from support.broker_process import BrokerProcess
from support.certificates import Authority

HALF = 2000  # connections that stop within their handshake
_PAUSE, _PATIENCE = 0.005, 60.0  # seconds between two jobs, and for one
_PROCESSES, _AT_ONCE = 2, 32  # of a flood; connections of each that show keys or passwords
_SETTLED, _REST = 2.0, 5.0  # seconds of a flood before the measurement, and after it
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"


class Target(NamedTuple):
    """Addresses of the doors, and the broker's public key."""

    door: tuple[str, int]
    http: tuple[str, int]
    server_key: bytes


def greeting(mechanism: bytes) -> bytes:
    """Return a client's greeting."""
    return _GREETING + mechanism.ljust(20, b"\0") + bytes(32)


def curve(target: Target) -> CurveClient:
    """Return a client whose key nobody knows."""
    own = secrets.token_bytes(KEY_BYTES)
    return CurveClient(_METADATA, 1 << 20, own, target.server_key)


_METADATA = b"\x0bSocket-Type\0\0\0\x06DEALER"


# ------------------------------------------------------------------------- floods


def silent(target: Target) -> bytes:
    """Return nothing."""
    return b""


def greeted(target: Target) -> bytes:
    """Return a greeting without a command."""
    return greeting(b"CURVE")


def said_hello(target: Target) -> bytes:
    """Return a greeting and a HELLO that costs the server curve work."""
    return greeting(b"CURVE") + curve(target).begin()


def hold(said: Callable[[Target], bytes], target: Target, until: Event) -> None:
    """Hold half handshakes; each that is ended is begun again."""
    count = HALF // _PROCESSES
    there: list[socket.socket] = []
    while not until.is_set():
        there = [each for each in there if not _has_ended(each)]
        while len(there) < count and not until.is_set():
            with suppress(OSError):
                there.append(one := socket.create_connection(target.door))
                one.sendall(said(target))
                one.settimeout(0)
        time.sleep(0.01)


def slow_tls(target: Target, until: Event) -> None:
    """Hold connections to HTTP that have sent the first byte of TLS, and send one more now and then."""
    there: list[socket.socket] = []
    while not until.is_set():
        while len(there) < HALF // _PROCESSES and not until.is_set():
            with suppress(OSError):
                there.append(one := socket.create_connection(target.http))
                one.sendall(b"\x16\x03\x01\x02")
                one.settimeout(0)
        there = [each for each in there if not _has_ended(each)]
        time.sleep(0.05)


def bad_keys(target: Target, until: Event) -> None:
    """Show one unknown key after the other, each in a whole handshake."""
    at_once(_show_keys, target, until)


def at_once(work: Callable[[Target, Event], None], target: Target, until: Event) -> None:
    """Do the same on many connections."""
    threads = [threading.Thread(target=work, args=(target, until), daemon=True) for _ in range(_AT_ONCE)]
    for each in threads:
        each.start()
    until.wait()


def _show_keys(target: Target, until: Event) -> None:
    while not until.is_set():
        with suppress(OSError), socket.create_connection(target.door) as one:
            client = curve(target)
            one.sendall(greeting(b"CURVE") + client.begin())
            heard = _hear(one, 64 + 170)
            one.sendall(client.take(heard[66:234]))
            _hear_all(one)


def bad_passwords(target: Target, until: Event) -> None:
    """Show one wrong password after the other."""
    at_once(_show_passwords, target, until)


def _show_passwords(target: Target, until: Event) -> None:
    while not until.is_set():
        with suppress(OSError), socket.create_connection(target.door) as one:
            password = secrets.token_hex(8).encode()
            body = b"\x05HELLO\x05admin" + bytes([len(password)]) + password
            one.sendall(greeting(b"PLAIN") + b"\x04" + bytes([len(body)]) + body)
            _hear_all(one)


def comings(target: Target, until: Event) -> None:
    """Connect and leave without end."""
    while not until.is_set():
        with suppress(OSError):
            socket.create_connection(target.door).close()


FLOODS: dict[str, Callable[[Target, Event], None]] = {
    "2000 that say nothing": lambda *place: hold(silent, *place),
    "2000 after the greeting": lambda *place: hold(greeted, *place),
    "2000 after HELLO": lambda *place: hold(said_hello, *place),
    "bad keys": bad_keys,
    "bad passwords": bad_passwords,
    "connect and leave": comings,
    "slow TLS": slow_tls,
}


def _has_ended(one: socket.socket) -> bool:
    try:
        while data := one.recv(4096):
            del data
    except BlockingIOError:
        return False
    except OSError:
        pass
    one.close()
    return True


def _hear(one: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        data = one.recv(4096)
        if not data:
            raise ConnectionError
        heard += data
    return heard


def _hear_all(one: socket.socket) -> None:
    one.settimeout(_PATIENCE)
    while one.recv(4096):
        pass


def _flood(name: str, target: Target, until: Event) -> None:
    os.nice(19)
    FLOODS[name](target, until)


@contextmanager
def flooded(name: str, target: Target) -> Iterator[None]:
    """Flood the broker; returns once the flood has been there for some seconds."""
    until = multiprocessing.get_context("spawn").Event()
    processes = [
        multiprocessing.get_context("spawn").Process(target=_flood, args=(name, target, until), daemon=True)
        for _ in range(_PROCESSES)
    ]
    for each in processes:
        each.start()
    try:
        time.sleep(_SETTLED)
        yield
    finally:
        until.set()
        for each in processes:
            each.join(10)
            each.kill()


# ------------------------------------------------------------------------ measuring


class Figures(NamedTuple):
    """Milliseconds from a push until a worker has the job, and to get in; the broker's use of a core."""

    work: list[float]
    enter: list[float]
    core: float

    def row(self) -> list[str]:
        """Return them as text."""
        p99 = sorted(self.work)[int(0.99 * len(self.work))]
        return [
            f"{statistics.median(self.work):.2f}",
            f"{p99:.2f}",
            f"{statistics.median(self.enter):.1f}",
            f"{max(self.enter):.0f}",
            f"{100 * self.core:.0f} %",
        ]


class Honest:
    """An honest client, with its producer and worker."""

    def __init__(self, stack: ExitStack, broker: BrokerProcess, access: dict[str, Any]) -> None:
        self._door, self._access = broker.doors["smq"], access
        self._process = psutil.Process(broker.pid)
        self._came = threading.Event()
        self._producer = stack.enter_context(Producer(self._door, **access))
        stack.enter_context(Worker(self._door, "honest", lambda _job: self._came.set(), **access))

    def measure(self, seconds: float) -> Figures:
        """Push and connect for some seconds."""
        work: list[float] = []
        enter: list[float] = []
        until = time.perf_counter() + seconds
        entering = threading.Thread(target=self._enter, args=(enter, until))
        cpu, began = self._cpu(), time.perf_counter()
        entering.start()
        while time.perf_counter() < until:
            self._came.clear()
            at = time.perf_counter()
            self._producer.push("honest", b"x" * 200)
            if not self._came.wait(_PATIENCE):
                raise TimeoutError("a job did not come")
            work.append(1000 * (time.perf_counter() - at))
            time.sleep(_PAUSE)
        core = (self._cpu() - cpu) / (time.perf_counter() - began)
        entering.join()
        return Figures(work, enter, core)

    def _enter(self, enter: list[float], until: float) -> None:
        while time.perf_counter() < until:
            at = time.perf_counter()
            with Client(self._door, timeout=_PATIENCE, **self._access) as client:
                client.ping()
            enter.append(1000 * (time.perf_counter() - at))
            time.sleep(20 * _PAUSE)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


# ------------------------------------------------------------------------------ all


@contextmanager
def serving(folder: Path) -> Iterator[tuple[BrokerProcess, Target, dict[str, Any]]]:
    """Start a broker with keys; its addresses, and how the honest client gets in."""
    for name in ("broker", "admin"):
        secret = secrets.token_bytes(KEY_BYTES)
        write_key_file(folder / f"{name}.key", KeyPair(public_of(secret), secret))
    server_key, admin = (public_in(folder / f"{name}.key") for name in ("broker", "admin"))
    certificate = Authority(folder).certificate("127.0.0.1")
    config = {
        "broker": {
            "http": "127.0.0.1:0",
            "http_tls_cert": str(certificate.chain),
            "http_tls_key": str(certificate.key),
        },
        "devices": [],
        "security": {
            "mechanism": ["curve", "plain"],
            "secret_key_file": str(folder / "broker.key"),
            "principals": {
                "admin": {
                    "keys": [admin],
                    "password": hash_password(secrets.token_hex(8)),
                    "permissions": "all",
                }
            },
        },
    }
    with BrokerProcess(config=config) as broker:
        target = Target(_place(broker.doors["smq"]), _place(broker.http), read_key(server_key))
        yield broker, target, {"key_file": folder / "admin.key", "server_key": server_key}


def public_in(file: Path) -> str:
    """Return the public key of a key file."""
    return encode(read_key_file(file).public)


def _place(address: str) -> tuple[str, int]:
    host, port = address.rpartition("//")[2].rsplit(":", 1)
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flood", action="append", choices=FLOODS)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    columns = ("ms", "median", "p99", "get in", "longest", "core", "ratio of medians")
    table = Table(*columns, title="an honest client beside floods")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker, target, access = stack.enter_context(serving(folder))
        honest = Honest(stack, broker, access)
        honest.measure(2.0)
        for name in options.flood or FLOODS:
            before = honest.measure(options.seconds)
            with flooded(name, target):
                during = honest.measure(options.seconds)
            time.sleep(_REST)
            table.add_row("without", *before.row(), "")
            ratio = statistics.median(during.work) / statistics.median(before.work)
            table.add_row(name, *during.row(), f"{ratio:.2f}")
            print(name, before.row(), during.row(), f"{ratio:.2f}", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
