"""Clients beside the doors of this process, driven without blocking its hub."""

from __future__ import annotations

import contextlib
import gc
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import psutil
import zmq
from gevent import socket as sockets

from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard, host_and_port, parse_endpoint
from sluicemq_devices.zmtp import Message
from support.raw_zmtp import hear_handshake
from support.waiting import TIMEOUT

ANY_PORT = parse_endpoint("tcp://127.0.0.1:0")


class Notices(list[tuple[str, str]]):
    """Notices of a switchboard: kind and text."""

    def of(self, kind: str) -> list[str]:
        return [text for found_kind, text in self if found_kind == kind]


class Clients:
    """Plain ZeroMQ sockets in this process, read and written without blocking the hub."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connect(self, kind: int, address: str, **options: Any) -> zmq.Socket[bytes]:
        return self._socket(kind, options, lambda socket: socket.connect(address))

    def bind(self, kind: int, **options: Any) -> tuple[zmq.Socket[bytes], Endpoint]:
        """Bind to a free port; and the endpoint that a door needs to connect to it."""
        socket = self._socket(kind, options, lambda socket: socket.bind("tcp://127.0.0.1:0"))
        return socket, Endpoint(socket.getsockopt_string(zmq.LAST_ENDPOINT), bind=False)

    def _socket(
        self, kind: int, options: dict[str, Any], attach: Callable[[zmq.Socket[bytes]], object]
    ) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        for name, value in options.items():
            setattr(socket, name, value)
        attach(socket)
        return socket


class LaneRecorder:
    """Handler of lanes: keeps those that were opened, their messages, and those that closed."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.messages: list[Message] = []
        self.closed: list[Lane] = []
        self.unblocked = 0

    def opened(self, lane: Lane) -> None:
        lane.on(receive=self.messages.extend, closed=lambda: self.closed.append(lane), unblocked=self._count)
        self.lanes.append(lane)

    def lane(self, number: int = 0) -> Lane:
        eventually(lambda: len(self.lanes) > number)
        return self.lanes[number]

    def _count(self) -> None:
        self.unblocked += 1


def lane_door(
    board: Switchboard, recorder: LaneRecorder, kind: str = "DEALER", at: Endpoint = ANY_PORT, **options: Any
) -> LaneDoor:
    return LaneDoor(board, at, kind, recorder.opened, **{"max_frame": 1 << 20, **options})


def eventually(condition: Callable[..., Any], seconds: float = TIMEOUT) -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        gevent.sleep(0.002)
    return value


def receive(socket: zmq.Socket[bytes], seconds: float = TIMEOUT) -> list[bytes]:
    def attempt() -> list[bytes] | None:
        with contextlib.suppress(zmq.Again):
            return socket.recv_multipart(zmq.NOBLOCK)
        return None

    return list(eventually(attempt, seconds))


def send(socket: zmq.Socket[bytes], *frames: bytes) -> None:
    def attempt() -> bool:
        with contextlib.suppress(zmq.Again):
            socket.send_multipart(frames, zmq.NOBLOCK)
            return True
        return False

    eventually(attempt)


def open_files() -> int:
    """How many files this process has open; libzmq's threads close theirs a little later.

    Those of sockets that nobody refers to any more, but in a cycle, are closed first: it matters not when.
    """
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def dial(address: str) -> sockets.socket:
    return sockets.create_connection(host_and_port(address), timeout=TIMEOUT)


#: ZMTP 3.0, which knows no heartbeats, and 3.1.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)
NEWER = GREETING[:11] + b"\x01" + GREETING[12:]
PING, PONG = b"\x04\x07\x04PING\0\0", b"\x04\x05\x04PONG"


def ready(kind: bytes, identity: bytes = b"") -> bytes:
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    if identity:
        body += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
    return b"\x04" + bytes([len(body)]) + body


def shake_hands(
    address: str, kind: bytes, greeting: bytes = GREETING, *, identity: bytes = b""
) -> sockets.socket:
    client = dial(address)
    client.sendall(greeting + ready(kind, identity))
    hear_handshake(client)
    return client


def ended(client: sockets.socket) -> bool:
    """The other side has closed the connection (waits for it)."""
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass
    return True
