"""Input of one connection of the HTTP door: lines, bodies, and a rule for what is a request.

A request that two programs could read in two ways is refused, so that a proxy and this door see one request.
"""

from __future__ import annotations

import re
from typing import Any, Final

#: Bytes of all headers of a request with its first line.
MOST_HEADER_BYTES: Final = 32 * 1024
#: Control characters, but tab: a CR in a line is one, and so are VT, FF and NUL.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: Methods and versions of HTTP; some broken clients send an empty line before the next request.
_FIRST: Final = re.compile(rb"[A-Z\r\n]")
_TLS_HANDSHAKE: Final = b"\x16"
_ZMTP_GREETING: Final = b"\xff"
_REQUEST_LINE: Final = re.compile(r"[A-Z]{1,16} [!-~]+ HTTP/1\.[01]\r?\n")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH: Final = re.compile(r"[0-9]{1,10}")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(?::[0-9]{0,5})?")


class Received:
    """The input of a connection, read by line or by length; ``room``: bytes that lines may still have."""

    closed = False

    def __init__(self, sock: Any) -> None:
        self.room = MOST_HEADER_BYTES
        self.socket = sock
        self._came = bytearray()

    def require_http(self) -> None:
        """Wait for the first byte; raises ValueError if no request begins with it."""
        if not self._came and not self._more():
            return
        first = bytes(self._came[:1])
        if first == _TLS_HANDSHAKE:
            raise ValueError("a TLS handshake, but this door speaks plain HTTP: see [broker] http_tls_cert")
        if first == _ZMTP_GREETING:
            raise ValueError("a client of ZeroMQ, but this is the HTTP door: see [broker] endpoint")
        if not _FIRST.match(first):
            raise ValueError(f"bytes that are no HTTP, they begin with {first!r}")

    def readline(self, limit: int) -> bytes:
        """Read a line; the first ``limit`` bytes of a longer one, or less at the end.

        Raises ValueError for control characters, and when the lines are too long together.
        """
        looked = 0
        while not (end := self._came.find(b"\n", looked) + 1) and len(self._came) < limit:
            looked = len(self._came)
            if not self._more():
                break
        line = self._take(min(end or len(self._came), limit))
        self.room -= len(line)
        if self.room < 0:
            raise ValueError("the headers are too long")
        if _CONTROL.search(line.removesuffix(b"\n").removesuffix(b"\r")):
            raise ValueError("a control character in a header")
        return line

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes; fewer at the end."""
        while len(self._came) < size and self._more():
            pass
        return self._take(size)

    def _more(self) -> bool:
        part = self.socket.recv(16 * 1024)
        self._came += part
        return bool(part)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._came[:size])
        del self._came[:size]
        return taken


def require_request_line(line: str) -> None:
    """Raise ValueError unless a line has a method, a path of visible ASCII and a version, a space apart."""
    if not _REQUEST_LINE.fullmatch(line):
        raise ValueError("no request line")


def require_plain(headers: Any) -> None:
    """Raise ValueError unless any proxy reads these headers as this door does."""
    names_are_plain = all(map(_NAME.fullmatch, headers.keys()))
    if headers.defects or not names_are_plain or any("\n" in value for value in headers.values()):
        raise ValueError("headers that can be read in two ways")
    lengths, hosts = headers.get_all("content-length", []), headers.get_all("host", [])
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise ValueError("a length that can be read in two ways")
    if len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)):
        raise ValueError("a Host that is none")
