"""A PULL worker of ZMTP 3.1 made by hand: it says what it has in its memory when a test asks."""

import contextlib
import io
import socket as sockets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.raw_sockets import shake_hands
from support.waiting import wait_until

_MORE, _LONG, _COMMAND = 1, 2, 4


class PullPeer:
    """One connection. ``jobs`` are the messages that have come; its PONGs come when :meth:`take` is called.

    ``prompt``: it has room for everything, so each PING is answered at once. A message of more than 255 bytes
    it does not take: it leaves, as libzmq does where ``ZMQ_MAXMSGSIZE`` says so.
    """

    def __init__(self, address: str, *, prompt: bool = False) -> None:
        self.jobs: list[list[bytes]] = []
        self.ended = False
        self._pings: list[bytes] = []
        self._prompt = prompt
        self._lock = threading.Lock()
        self._socket = shake_hands(address, b"PULL")
        self._socket.settimeout(None)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def payloads(self) -> list[bytes]:
        """The last frame of each job."""
        return [frames[-1] for frames in list(self.jobs)]

    def wait_jobs(self, count: int) -> list[bytes]:
        """Wait until ``count`` have come, and the PING behind them."""
        wait_until(lambda: len(self.jobs) >= count and self._pings, what=f"{count} jobs at the peer")
        return self.payloads

    def take(self) -> None:
        """There is room: answer all PINGs that have come."""
        with self._lock:
            waiting, self._pings = self._pings, []
        for context in waiting:
            self._pong(context)

    def close(self) -> None:
        """Leave; again is harmless."""
        self._leave()
        self._reader.join(60)
        self._socket.close()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # the broker may have left first
            self._socket.shutdown(sockets.SHUT_RDWR)

    def _pong(self, context: bytes) -> None:
        self._socket.sendall(b"\x04" + bytes([5 + len(context)]) + b"\x04PONG" + context)

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as stream, contextlib.suppress(OSError):
                self._read_frames(stream)
        finally:
            self.ended = True

    def _read_frames(self, stream: io.BufferedReader) -> None:
        frames: list[bytes] = []
        while header := self._receive(stream, 2):
            flags, size = header
            if flags & _LONG:
                self._leave()
                return
            body = self._receive(stream, size)
            if flags == _COMMAND:
                self._obey(body)
                continue
            frames.append(body)
            if flags != _MORE:
                self.jobs.append(frames)
                frames = []

    def _receive(self, stream: io.BufferedReader, size: int) -> bytes:
        try:
            return stream.read(size) or b""
        except OSError:
            return b""

    def _obey(self, command: bytes) -> None:
        if not command.startswith(b"\x04PING"):
            return
        with self._lock:
            if not self._prompt:
                self._pings.append(command[7:])
                return
        self._pong(command[7:])


@contextmanager
def pull_peer(address: str, *, prompt: bool = False) -> Iterator[PullPeer]:
    """Connect one; it leaves at the end."""
    peer = PullPeer(address, prompt=prompt)
    try:
        yield peer
    finally:
        peer.close()
