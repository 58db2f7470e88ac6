"""Mechanisms driven without a socket, and over blocking ones with libzmq on the other side."""

import hashlib
import socket
from typing import Any, Final

from sluicemq_devices.zmtp import COMMAND, LONG, MORE, Mechanism, encode, ready_property
from support.waiting import TIMEOUT

DEALER: Final = ready_property(b"Socket-Type", b"DEALER") + ready_property(b"Identity", b"")
ROUTER: Final = ready_property(b"Socket-Type", b"ROUTER") + ready_property(b"Identity", b"")


class FixedRandom:
    """Random bytes that are the same each time, so that handshakes have the same bytes."""

    def __init__(self, seed: bytes) -> None:
        self._seed, self._count = seed, 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return hashlib.sha256(self._seed + bytes((self._count,))).digest()[:size]


def body_of(command: bytes) -> bytes:
    (flags, body), *rest = frames_of(command)
    assert flags & ~LONG == COMMAND
    assert not rest
    return body


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Flags and bodies of frames on the wire."""
    frames = []
    while data:
        start = 9 if data[0] & LONG else 2
        stop = start + int.from_bytes(data[1:start])
        assert stop <= len(data)
        frames.append((data[0], data[start:stop]))
        data = data[stop:]
    return frames


def shake_hands(client: Mechanism, server: Mechanism) -> list[bytes]:
    """Let two sides do their handshake; return the bodies of their commands."""
    said: list[bytes] = []
    sides, outward = (server, client), client.begin()
    while outward:
        said.append(body_of(outward))
        outward = sides[0].take(said[-1])
        if sides[0].credentials and not sides[0].done:
            outward += sides[0].decide("")
        sides = sides[1], sides[0]
    assert (client.error, client.done, server.error, server.done) == ("", True, "", True)
    return said


class Wire:
    """One end of a TCP connection that speaks ZMTP with a mechanism; it waits until the other side acts."""

    def __init__(
        self, connection: socket.socket, mechanism: Mechanism, *, server: bool, why: str = ""
    ) -> None:
        """Do the handshake; ``why``: refuse the peer for this reason."""
        connection.settimeout(TIMEOUT)
        self.connection, self.mechanism = connection, mechanism
        self.heard = self.said = b""
        self._plain = bytearray()
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.name.encode().ljust(20, b"\0")
        connection.sendall(greeting + bytes((server,)) + bytes(31))
        assert self._receive(64)[12:32] == greeting[12:]
        self._say(mechanism.begin())
        while not (mechanism.done or mechanism.error):
            self._say(mechanism.take(self._frame()))
            if mechanism.credentials and not mechanism.done and not mechanism.error:
                self._say(mechanism.decide(why))

    def send(self, *frames: bytes) -> None:
        traffic = self.mechanism.traffic
        self._say(traffic.encode([*frames]) if traffic else encode([*frames]))

    def say(self, encoded: bytes) -> None:
        traffic = self.mechanism.traffic
        self._say(traffic.seal(encoded) if traffic else encoded)

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the frames of the next message, or the next command: flags without LONG, and bodies."""
        frames: list[tuple[int, bytes]] = []
        while not frames or frames[-1][0] & MORE:
            frames.append(self._next_frame())
        return frames

    def message(self) -> list[bytes]:
        """Return the next message; there must be no command before it."""
        frames = self.receive()
        assert not any(flags & COMMAND for flags, _ in frames)
        return [body for _, body in frames]

    def _next_frame(self) -> tuple[int, bytes]:
        while True:
            plain = self._plain
            if len(plain) >= (start := 9 if plain and plain[0] & LONG else 2):
                stop = start + int.from_bytes(plain[1:start])
                if len(plain) >= stop:
                    frame = plain[0] & ~LONG, bytes(plain[start:stop])
                    del plain[:stop]
                    return frame
            self._hear()

    def _hear(self) -> None:
        traffic: Any = self.mechanism.traffic
        data = self.connection.recv(65_536)
        assert data, "the other side has ended the connection"
        self._plain += traffic.open(data) if traffic else data
        assert not (traffic and traffic.error)

    def _frame(self) -> bytes:
        header = self._receive(2)
        if header[0] & LONG:
            header += self._receive(7)
        assert header[0] & ~LONG == COMMAND
        return self._receive(int.from_bytes(header[1:]))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.connection.recv(size - len(data))
            assert more, "the other side has ended the connection"
            data += more
        self.heard += data
        return data

    def _say(self, data: bytes) -> None:
        self.said += data
        self.connection.sendall(data)
