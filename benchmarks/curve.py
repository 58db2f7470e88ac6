"""CPU of CURVE: a handshake at the server, and messages sealed and opened: ``python benchmarks/curve.py``.

Without sockets, in one process: the medians of some rounds, in microseconds of CPU. Large frames are taken
as a connection reads them; ``--heap`` keeps malloc as a program without a door has it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from devices.mechanism_wire import DEALER, ROUTER, body_of, shake_hands
from sluicemq_devices.hub import give_back_large_memory
from sluicemq_devices.zmtp import CURVE, FramePeer, Terms, encode
from sluicemq_devices.zmtp.curve.client import CurveClient
from sluicemq_devices.zmtp.curve.server import CurveServer
from sluicemq_devices.zmtp.curve.sodium import Boxes, public_of, randombytes
from sluicemq_devices.zmtp.curve.traffic import CurveTraffic

SECRET, SERVER_SECRET = randombytes(32), randombytes(32)
SERVER_KEY = public_of(SERVER_SECRET)
MOST = 16 << 20
CHUNK, READ = 65_536, 262_144
LARGE = 12 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--heap", action="store_true", help="large pieces of memory are not mapped")
    options = parser.parse_args()
    if not options.heap:
        give_back_large_memory()
    table = Table("us of CPU", "median", "least", title=f"{commit()}, PyNaCl {version('pynacl')}")
    for name, measure in MEASURES.items():
        values = [1e6 * measure() for _ in range(options.rounds)]
        table.add_row(name, f"{statistics.median(values):,.2f}", f"{min(values):,.2f}")
    Console().print(table)


def commit() -> str:
    """Return the commit that is measured, and whether it was changed."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def handshake() -> float:
    """CPU of a whole handshake at the server."""
    return sum(_steps()) / 100


def hello() -> float:
    """CPU of what anybody can ask of the server: a HELLO that it can open."""
    return _steps()[0] / 100


def _steps() -> tuple[float, float]:
    """CPU of 100 handshakes at the server: up to WELCOME, and the rest."""
    first = second = 0.0
    for _ in range(100):
        client = CurveClient(DEALER, MOST, SECRET, SERVER_KEY)
        command = body_of(client.begin())
        began = time.thread_time()
        server = CurveServer(ROUTER, MOST, SERVER_SECRET)
        welcome = server.take(command)
        first += time.thread_time() - began
        command = body_of(client.take(body_of(welcome)))
        began = time.thread_time()
        server.take(command)
        server.decide("")
        second += time.thread_time() - began
        assert server.done
    return first, second


def foreign_cookie() -> float:
    """CPU of an INITIATE of another connection, beyond that of its HELLO."""
    client = CurveClient(DEALER, MOST, SECRET, SERVER_KEY)
    command = body_of(client.begin())
    initiate = body_of(client.take(body_of(CurveServer(ROUTER, MOST, SERVER_SECRET).take(command))))
    took = 0.0
    for _ in range(100):
        server = CurveServer(ROUTER, MOST, SERVER_SECRET)
        server.take(command)
        began = time.thread_time()
        server.take(initiate)
        took += time.thread_time() - began
        assert server.error
    return took / 100


def connected() -> tuple[CurveTraffic, CurveTraffic]:
    """Two ends of a connection."""
    client = CurveClient(DEALER, MOST, SECRET, SERVER_KEY)
    server = CurveServer(ROUTER, MOST, SERVER_SECRET)
    shake_hands(client, server)
    assert isinstance(client.traffic, CurveTraffic)
    assert isinstance(server.traffic, CurveTraffic)
    return client.traffic, server.traffic


def timed(act: Callable[[], object], times: int) -> float:
    """CPU of one act."""
    began = time.thread_time()
    for _ in range(times):
        act()
    return (time.thread_time() - began) / times


def sealed_as_frames() -> float:
    ours, _ = connected()
    return timed(lambda: ours.encode([b"m" * 200]), 5000)


def sealed_encoded() -> float:
    ours, _ = connected()
    encoded = encode([b"m" * 200])
    return timed(lambda: ours.seal(encoded), 5000)


def opened(size: int) -> float:
    """CPU of one message, of chunks of 64 KiB."""
    return _chunks(size) / (CHUNK / len(connected()[0].encode([b"m" * size])))


def chunk(size: int) -> Callable[[], float]:
    return lambda: _chunks(size)


def _chunks(size: int) -> float:
    ours, theirs = connected()
    data = b"".join(ours.encode([b"m" * size]) for _ in range(20 * CHUNK // (size + 35)))
    pieces = iter([data[at : at + CHUNK] for at in range(0, 20 * CHUNK, CHUNK)])
    return timed(lambda: theirs.open(next(pieces)), 20)


def large_sealed() -> float:
    ours, _ = connected()
    frame = b"m" * LARGE  # its memory is there
    return timed(lambda: ours.encode([frame]), 1)


def large_box() -> float:
    """CPU of the cipher alone, in memory that is there already: it shows how fast this machine is now."""
    memory = bytearray(b"m") * LARGE
    return timed(lambda: Boxes(SECRET).seal_in(memory, 0, LARGE, bytes(24)), 1)


def large_opened() -> float:
    """CPU of the last read, with which the frame is complete: nothing else runs meanwhile."""
    ours, theirs = connected()
    sealed = memoryview(ours.encode([bytes(LARGE)]))
    theirs.open(sealed[:CHUNK])
    at = CHUNK
    while theirs.missing > READ:
        theirs.open(sealed[at : at + READ])
        at += READ
    return timed(lambda: theirs.open(sealed[at:]), 1)


def large_taken() -> float:
    """CPU of the last read of a connection, with which it has the message."""
    ours, theirs = connected_peers()
    assert ours.traffic
    sealed = memoryview(ours.traffic.encode([bytes(LARGE)]))
    theirs.take(bytes(sealed[:CHUNK]))
    at = CHUNK
    while theirs.missing > READ:
        theirs.take_of_large(sealed[at : at + READ])
        at += READ
    return timed(lambda: theirs.take_of_large(sealed[at:]), 1)


class Dialled(Terms):
    """A client that knows the server."""

    server_key = SERVER_KEY


class Bound(Terms):
    """The server."""

    mechanisms = frozenset({CURVE})
    secret_key = SERVER_SECRET


def connected_peers() -> tuple[FramePeer, FramePeer]:
    """Two ends of a connection that read messages: the one that has dialled, and the other one."""
    said: tuple[list[bytes], list[bytes]] = [], []
    ours = FramePeer("PUSH", MOST, said[0].append, Dialled(), dials=True)
    theirs = FramePeer("PULL", MOST, said[1].append, Bound())
    for peer in (ours, theirs):
        peer.greet()
    while not (ours.ready and theirs.ready):
        for peer, heard in ((ours, said[1]), (theirs, said[0])):
            data = b"".join(heard)
            heard.clear()
            peer.take(data)
            if peer.credentials:
                peer.decide("")
                peer.take()
    return ours, theirs


MEASURES: dict[str, Callable[[], float]] = {
    "handshake, server": handshake,
    "of it, HELLO": hello,
    "INITIATE with a foreign cookie": foreign_cookie,
    "200 bytes sealed": sealed_as_frames,
    "200 bytes sealed, encoded before": sealed_encoded,
    "200 bytes opened": lambda: opened(200),
    "64 KiB of messages of 200 bytes opened": chunk(200),
    "64 KiB of messages of 1 byte opened": chunk(1),
    "12 MiB sealed": large_sealed,
    "12 MiB opened, last read": large_opened,
    "of it, and of sealing, libsodium": large_box,
    "12 MiB opened and handed over, last read": large_taken,
}


if __name__ == "__main__":
    main()
