"""A TCP proxy before MongoDB that swallows chosen replies: the statement is applied, nobody hears it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import bson

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013


@dataclass(frozen=True)
class Command:
    """A request: its name, the collection it is about, the statements of an insert, update or delete."""

    name: str
    collection: str
    statements: list[dict[str, Any]]


class CuttingProxy:
    """Passes everything on, but for replies to commands that :meth:`cut` has chosen.

    Instead of such a reply, which only comes once MongoDB has applied the command, its connection
    is cut.
    """

    def __init__(self, mongodb_uri: str) -> None:
        parts = urlsplit(mongodb_uri)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 27017)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true"
        self.cuts: list[Command] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._chosen: Callable[[Command], bool] = lambda _command: False
        self._left = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def cut(self, chosen: Callable[[Command], bool], times: int = 1) -> None:
        """Cut the replies to the next so many commands that are ``chosen``."""
        with self._lock:
            self._chosen, self._left = chosen, times

    def freeze(self) -> None:
        """Pass nothing on from now on; connections stay open."""
        self._flowing.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _cut(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                self._sockets += [client, server]
                _Splice(client, server, self._is_chosen, self._flowing).start()

    def _is_chosen(self, command: Command) -> bool:
        with self._lock:
            if not self._left or not self._chosen(command):
                return False
            self._left -= 1
            self.cuts.append(command)
            return True


class _Splice:
    """One connection, both ways, a thread each."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        chosen: Callable[[Command], bool],
        flowing: threading.Event,
    ) -> None:
        self._client = client
        self._server = server
        self._chosen = chosen
        self._flowing = flowing
        self._swallow: set[int] = set()

    def start(self) -> None:
        for way in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(way,), daemon=True).start()

    def _run(self, way: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            way()
        _cut(self._client)
        _cut(self._server)

    def _requests(self) -> None:
        while True:
            message = _read_message(self._client)
            _, number, _, operation = _HEADER.unpack_from(message)
            if operation == _OP_MSG and self._chosen(_command(message)):
                self._swallow.add(number)
            self._flowing.wait()
            self._server.sendall(message)

    def _replies(self) -> None:
        while True:
            message = _read_message(self._server)
            if _HEADER.unpack_from(message)[2] in self._swallow:
                return
            self._flowing.wait()
            self._client.sendall(message)


def _read_message(source: socket.socket) -> bytes:
    header = _read(source, _HEADER.size)
    return header + _read(source, _HEADER.unpack(header)[0] - _HEADER.size)


def _read(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _command(message: bytes) -> Command:
    """Take an OP_MSG apart: flags, one body (kind 0), sequences of documents (kind 1)."""
    at, body, statements = _HEADER.size + 4, {}, []
    while at < len(message):
        kind, size = message[at], struct.unpack_from("<i", message, at + 1)[0]
        section = message[at + 1 : at + 1 + size]
        if kind == 0:
            body = bson.decode(section)
        else:
            statements = bson.decode_all(section[section.index(b"\0", 4) + 1 :])
        at += 1 + size
    name = next(iter(body))
    return Command(name, str(body[name]), statements)


def _cut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
