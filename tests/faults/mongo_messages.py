"""MongoDB's messages as they lie on the wire, as far as a proxy must read them."""

import socket
import struct
from functools import cached_property
from typing import Any, Final

import bson

OP_MSG: Final = 2013
_HEADER: Final = struct.Struct("<iiii")
#: Where a command of this name has its statements, if they are in its body.
_STATEMENTS: Final = {"insert": "documents", "update": "updates", "delete": "deletes"}


class Command:
    """A request: its name, the collection it is about, the statements of an insert, update or delete."""

    def __init__(self, message: bytes) -> None:
        """Take an OP_MSG apart: flags, one body (kind 0), sequences of documents (kind 1)."""
        at = _HEADER.size + 4
        self.body: dict[str, Any] = {}
        self._sequences: list[bytes] = []
        while at < len(message):
            kind, size = message[at], struct.unpack_from("<i", message, at + 1)[0]
            section = message[at + 1 : at + 1 + size]
            if kind == 0:
                self.body = bson.decode(section)
            else:
                self._sequences.append(section[section.index(b"\0", 4) + 1 :])
            at += 1 + size
        self.name = next(iter(self.body))
        self.collection = str(self.body["collection" if self.name == "getMore" else self.name])

    @cached_property
    def statements(self) -> list[dict[str, Any]]:
        """The documents of an insert, the ``{q, u}`` of an update, the ``{q}`` of a delete."""
        inside = self.body.get(_STATEMENTS.get(self.name, ""), [])
        return [
            *inside,
            *(document for sequence in self._sequences for document in bson.decode_all(sequence)),
        ]

    @property
    def session(self) -> bytes | None:
        return bytes(self.body["lsid"]["id"]) if "lsid" in self.body else None

    @property
    def txn_number(self) -> int | None:
        """By which the server knows a repetition of the same statement in the same session."""
        return self.body.get("txnNumber")

    def __repr__(self) -> str:
        return f"<{self.name} {self.collection} {self.statements[:1]} ({len(self.statements)})>"


def header(message: bytes) -> tuple[int, int, int, int]:
    """Its length, its number, the number of the message that it answers, and its operation."""
    length, number, answered, operation = _HEADER.unpack_from(message)
    return length, number, answered, operation


def read_message(source: socket.socket) -> bytes:
    """The next whole message; raises EOFError at the end."""
    start = _read(source, _HEADER.size)
    return start + _read(source, header(start)[0] - _HEADER.size)


def _read(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
