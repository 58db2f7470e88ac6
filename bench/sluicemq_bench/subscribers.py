"""SUB sockets that only count, without libzmq: ten of them take less CPU than one of libzmq's.

So the broker is measured and not its subscribers, with which it shares the machine. They speak ZMTP 3.0,
subscribe, and read bytes: all measured messages have one length.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
_READY: Final = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
_EVERYTHING: Final = b"\x00\x01\x01"
_MORE, _LONG, _COMMAND = 1, 2, 4
_BUFFER: Final = 1 << 20
_CONNECT: Final = 10.0  # seconds


def listen(backend: str, count: int, most: int, probe: bytes, silence: float, report: Connection) -> None:
    """Report 0 when ``count`` sockets get probes; then how many other messages came, and the last one's time.

    ``most``: messages for each, at most. Once all get probes, it ends if no message comes for ``silence``
    seconds. Times are monotonic. Raises OSError if the broker can't be reached or hangs up.
    """
    host, _, port = backend.removeprefix("tcp://").rpartition(":")
    subscribers = [_Subscriber(host, int(port), probe) for _ in range(count)]
    receiving, last = 0, 0.0
    with selectors.DefaultSelector() as selector:
        for subscriber in subscribers:
            selector.register(subscriber.socket, selectors.EVENT_READ, subscriber)
        while any(subscriber.got < most for subscriber in subscribers):
            ready = selector.select(silence if receiving == count else None)
            if not ready:
                break
            for key, _events in ready:
                key.data.read()
            last = time.monotonic()
            if receiving < count:
                receiving = sum(subscriber.receives for subscriber in subscribers)
                if receiving == count:
                    report.send(0)
    report.send((sum(subscriber.got for subscriber in subscribers), last))
    for subscriber in subscribers:
        subscriber.socket.close()


class _Subscriber:
    """One connection. ``got``: messages so far, without probes; ``receives``: it has had any."""

    def __init__(self, host: str, port: int, probe: bytes) -> None:
        self.socket = socket.create_connection((host, port), timeout=_CONNECT)
        self._shake_hands()
        self.receives = False
        self._probe = probe
        self._buffer = bytearray(_BUFFER)
        self._begun = bytearray()  # bytes until the first message that counts
        self._length = self._bytes = 0  # of one message that counts, and of all

    @property
    def got(self) -> int:
        """Return the number of whole messages."""
        return self._bytes // self._length if self._length else 0

    def _shake_hands(self) -> None:
        """Send greeting, properties, subscription: each after the peer's own, or libzmq hangs up."""
        self.socket.sendall(_GREETING)
        self._receive(len(_GREETING))
        self.socket.sendall(_READY)
        _flags, size = self._receive(2)  # of a short command
        self._receive(size)
        self.socket.sendall(_EVERYTHING)

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise ConnectionError("the broker has hung up on a subscriber")
            data += some
        return data

    def read(self) -> None:
        """Read what is there; raises ConnectionError at its end."""
        size = self.socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the broker has hung up on a subscriber")
        if self._length:
            self._bytes += size
        else:
            self._begun += self._buffer[:size]
            self._begin()

    def _begin(self) -> None:
        end = 0
        for start, end, first in _messages(self._begun):
            if first is None:
                continue
            self.receives = True
            if first != self._probe:
                self._length, self._bytes = end - start, len(self._begun) - start
                return
        del self._begun[:end]


def _messages(data: bytearray) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield where each whole message begins and ends, and its first frame; None for a command."""
    start = at = 0
    first: bytes | None = None
    while at + 2 <= len(data):
        flags = data[at]
        body = at + (9 if flags & _LONG else 2)
        if len(data) < body:
            return
        end = body + int.from_bytes(data[at + 1 : body], "big")
        if len(data) < end:
            return
        if at == start and not flags & _COMMAND:
            first = bytes(data[body:end])
        at = end
        if not flags & _MORE:
            yield start, at, first
            start, first = at, None
