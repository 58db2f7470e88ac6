"""Clients without the library: plain ZeroMQ sockets, raw SMQ/1, and bare TCP that speaks some ZMTP."""

from __future__ import annotations

import itertools
import json
import socket as sockets
from collections import deque
from typing import Any

import zmq

from sluicemq.protocol import wire
from support.raw_zmtp import hear_handshake
from support.waiting import TIMEOUT

#: ZMTP 3.1, mechanism NULL.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)


class Smq:
    """A client of the library's door that may say anything."""

    def __init__(self, plain: zmq.Socket[bytes]) -> None:
        self.plain = plain
        self._numbers = itertools.count(1)
        self._put_by: deque[wire.Message] = deque()

    def ask(self, verb: bytes, *fields: Any) -> wire.Message:
        """Send a request and wait for its answer; pings on the way are passed over, deliveries kept."""
        number = next(self._numbers)
        self.plain.send_multipart(wire.encode(verb, number, *fields))
        return self.answer(number)

    def say(self, *frames: bytes) -> wire.Message:
        """Send frames as they are; the answer, which has number 0 where ours can't be read."""
        self.plain.send_multipart(frames)
        return self.answer(0)

    def answer(self, number: int) -> wire.Message:
        """The next OK or ERROR with this number."""
        return self.next(lambda message: message.verb in (wire.OK, wire.ERROR) and message.number == number)

    def delivery(self) -> list[list[Any]]:
        """The jobs of the next DELIVER: ``[receipt, id, payload, headers, attempt]`` each."""
        came = self._put_by.popleft() if self._put_by else self.next(_is_delivery)
        jobs: list[list[Any]] = came.fields[1]
        return jobs

    def next(self, wanted: Any) -> wire.Message:
        """The next message that is wanted; a delivery that comes before it is put by."""
        while not wanted(message := wire.decode(receive(self.plain))):
            if _is_delivery(message):
                self._put_by.append(message)
        return message


def _is_delivery(message: wire.Message) -> bool:
    return message.verb == wire.DELIVER


def receive(plain: zmq.Socket[bytes], seconds: float = TIMEOUT) -> list[bytes]:
    """Take the next message; AssertionError if none comes in time."""
    assert plain.poll(int(seconds * 1000)), f"nothing came within {seconds} s"
    return plain.recv_multipart()


def code(answer: list[bytes]) -> str:
    """The code of an error that a plain socket heard; AssertionError if it is none."""
    assert answer[0] == b"ERROR", f"no error but {answer[:2]}"
    assert len(answer) == 2
    error = json.loads(answer[1])
    assert set(error) == {"code", "message"}
    return str(error["code"])


def message(answer: list[bytes]) -> str:
    """The text of an error that a plain socket heard."""
    return str(json.loads(answer[1])["message"])


def dial(address: str) -> sockets.socket:
    """A bare TCP connection."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return sockets.create_connection((host, int(port)), timeout=TIMEOUT)


def shake_hands(address: str, kind: bytes) -> sockets.socket:
    """A bare TCP connection that has done the ZMTP handshake as a socket of this kind."""
    stranger = dial(address)
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    stranger.sendall(GREETING + b"\x04" + bytes([len(body)]) + body)
    hear_handshake(stranger)
    return stranger


def hung_up(stranger: sockets.socket) -> bool:
    """Wait until the door has ended this connection; TimeoutError if it does not."""
    try:
        while stranger.recv(65536):
            pass
    except ConnectionError:
        pass
    return True
