"""Answers of the HTTP door: JSON in pieces, and event streams.

A small value is one piece of known length. A large one, such as a job with a payload of some MiB, is encoded
while it is read, a piece in each turn of the hub: 11 MiB of bytes are 69 MB of JSON if all are escaped.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import falcon

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.json_values import dumps
from sluicemq.protocol.rows import JobPage, plain
from sluicemq_devices.hub import let_others_run

#: Bytes of one piece of an answer; and bytes of a payload encoded in one turn: each may become six.
_PIECE: Final = 64 * 1024
_BYTES: Final = 24 * 1024
#: Bytes of a page of whole jobs, as they are read.
_HELD: Final = 2 << 20


class Streamed:
    """An answer that is encoded while it is read; ``held``: bytes in memory until then."""

    def __init__(self, pieces: Iterator[bytes], held: int) -> None:
        self.held = held
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


class Endless:
    """An answer that goes on until one side closes the connection."""

    endless = True

    def __init__(self, events: Generator[bytes, None, None]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        return self._events

    def close(self) -> None:
        """End it: the peer has left."""
        self._events.close()


def write(response: falcon.Response, value: Any) -> None:
    """Answer with a value as JSON."""
    response.content_type = falcon.MEDIA_JSON
    held = _large(value)
    if held:
        response.stream = Streamed(_joined(_parts(value)), held)
    else:
        response.data = _encoded(dumps(value))


class Lines(Streamed):
    """Jobs of a queue as lines of JSON, page by page; ``more(next)`` reads one, and may wait for MongoDB.

    When it fails the answer ends without its last chunk, so that the client knows that lines are missing.
    """

    def __init__(self, queue: str, first: JobPage, more: Callable[[str], JobPage]) -> None:
        super().__init__(_lines(queue, first, more), _HELD)


def _lines(queue: str, page: JobPage, more: Callable[[str], JobPage]) -> Iterator[bytes]:
    while True:
        yield from _joined(
            part for job in page.jobs for part in (*_parts({"queue": queue, **plain(job)}), "\n")
        )
        if page.next is None:
            return
        try:
            page = more(page.next)
        except SluiceError as error:
            raise ConnectionAbortedError(str(error)) from error


def _large(value: Any) -> int:
    """Return the bytes of a job's values that are too large for one turn; 0 if none is."""
    if not isinstance(value, dict):
        return 0
    return sum([len(field) for field in value.values() if isinstance(field, bytes) and len(field) > _BYTES])


def _parts(job: dict[str, Any]) -> Iterator[str]:
    """Yield a job as JSON, in small parts."""
    before = "{"
    for name, value in job.items():
        yield before
        if isinstance(value, bytes) and len(value) > _BYTES:
            yield f"{dumps(name)}: "
            yield from _text(value)
        else:
            yield dumps({name: value})[1:-1]
        before = ", "
    yield "}"


def _text(value: bytes) -> Iterator[str]:
    if _is_text(value):
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield '"'
        for part in _slices(value):
            yield dumps(decoder.decode(part))[1:-1]
        yield '"'
    else:
        yield '{"base64": "'
        for part in _slices(value):  # a multiple of three: no padding inside
            yield base64.b64encode(part).decode()
        yield '"}'


def _is_text(value: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for part in _slices(value):
            decoder.decode(part)
            let_others_run()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _slices(value: bytes) -> Iterator[memoryview]:
    whole = memoryview(value)
    return (whole[first : first + _BYTES] for first in range(0, len(whole), _BYTES))


def _joined(parts: Iterator[str]) -> Iterator[bytes]:
    """Yield pieces of about :data:`_PIECE`, each in a turn of the hub."""
    piece = bytearray()
    for part in parts:
        piece += _encoded(part)
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
            let_others_run()
    if piece:
        yield bytes(piece)


def _encoded(text: str) -> bytes:
    """Return UTF-8; a lone surrogate is escaped as in JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")
