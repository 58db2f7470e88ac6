"""One connection of the HTTP door: it reads requests in bounded time and size, and writes answers.

gevent's handler knows HTTP. Differences:

- The socket has no file object, so that closing it closes the file descriptor at once.
- The head of an answer is written with its first piece; each piece must be read within some seconds.
- With TLS the handshake is a part of the connection: it is bounded in time, and counts as any other.
- Bytes that are no request are refused, counted and logged. Other errors of peers are lines at level debug.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from http.client import HTTPException
from io import BytesIO
from ssl import SSLEOFError, SSLError, SSLZeroReturnError
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import gevent
from gevent import monkey
from gevent.pywsgi import WSGIHandler

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.http.connections import ConnectionState
from sluicemq_broker.http.health import PATHS as HEALTH
from sluicemq_broker.http.reading import (
    MOST_HEADER_BYTES,
    Received,
    require_plain,
    require_request_line,
)
from sluicemq_broker.http.tls import await_hello, say_goodbye, shake_hands
from sluicemq_broker.runtime import Count

log = logging.getLogger("broker.http")

#: Bytes of a piece of an answer.
_PIECE: Final = 16 * 1024
#: Bytes of the body of a request: a thousand ids.
MOST_BODY_BYTES: Final = 256 * 1024
_LONGEST_LINE: Final = 8 * 1024
#: The key of a request's :class:`Connection` in its environment.
CONNECTION: Final = "sluicemq.connection"
_BUSY: Final = json.dumps(
    {"code": UnavailableError.code, "message": "too many requests are being answered: try again in a moment"}
).encode()
_RESET: Final = select.POLLERR | select.POLLHUP
_poll: Final[Any] = monkey.get_original("select", "poll")  # the system's own: it never waits here


class _NoRequest(Exception):
    """Raised for bytes that begin no request."""


class Handler(WSGIHandler):  # type: ignore[misc] # gevent has no types
    """One connection, from when it is accepted until its file is closed."""

    _deadline: Any = None
    _greenlet: Any = None
    _body = b""
    #: It waits for its turn or for an event, not inside MongoDB's client, where no greenlet may be killed.
    _waits = False
    environ: Any
    response_headers: list[tuple[bytes, bytes]]
    _corked: list[Any] | None = None
    _over_tls = False

    def __init__(self, sock: Any, address: Any, server: Any) -> None:
        self._came = Received(sock)
        super().__init__(sock, address, server, self._came)
        self._socket = sock
        self._connections = server.connections
        self._connection = server.connections.enter(str(address[0]), self.end, time.monotonic())
        self._connection.has_left = self._is_left

    def run(self) -> None:
        """Answer requests, one after the other, until one side closes the connection."""
        self._greenlet = gevent.getcurrent()
        try:
            if self.server.tls:
                self._shake_hands()
            self._socket.settimeout(30.0)  # for each piece of an answer
            self.handle()
        except OSError as error:  # the peer has left, or was cut
            if isinstance(error, SSLError) and not isinstance(error, SSLEOFError | SSLZeroReturnError):
                self._note_no_request(f"TLS: {error.reason or error}")
        except gevent.GreenletExit:
            pass
        except Exception as error:  # noqa: BLE001 - a fault of the broker ends this connection only
            self.server.counters.notice(Count.HTTP_FAILURES, "a connection of the HTTP door failed", error)
        finally:
            self._connections.leave(self._connection)
            self._close()
            del self._connection  # a cycle: without it both are freed at once

    def end(self) -> None:
        """Close the connection to make room for others; its greenlet ends."""
        self._socket.close()
        if self._waits and self._greenlet is not None:
            self._greenlet.kill(block=False)  # it would not notice that its socket is closed

    def _shake_hands(self) -> None:
        """Do the handshake of TLS, when the peer has begun it, and one in each turn of the hub."""
        if not await_hello(self._socket):
            raise ConnectionResetError
        self._waits = True
        self.server.pace.wait(0)
        self._waits = False
        self._socket = self.socket = self._came.socket = self.server.tls.wrap(self._socket)
        self._over_tls = True
        shake_hands(self._socket)

    def handle(self) -> None:
        """Answer requests until the connection is to be closed."""
        while (result := self.handle_one_request()) is True:
            pass
        if result is not None:
            self._sendall(result[1])

    def handle_one_request(self) -> Any:
        """Read one request in time, and answer it."""
        self._connections.idle(self._connection, time.monotonic())
        self._came.room = MOST_HEADER_BYTES
        self._deadline = gevent.Timeout.start_new(20.0)  # with the wait for the request
        try:
            return super().handle_one_request()
        except _NoRequest as error:
            return self._handle_client_error(error)
        except gevent.Timeout as timeout:
            if timeout is not self._deadline:
                raise
            return None
        finally:
            self._deadline.close()
            self.environ = None  # a cycle

    def read_requestline(self) -> str:
        """Read the first line of a request; empty lines before it are skipped."""
        try:
            self._came.require_http()
            line = self._came.readline(_LONGEST_LINE)
            while line in (b"\r\n", b"\n"):
                line = self._came.readline(_LONGEST_LINE)
        except ValueError as error:
            raise _NoRequest(str(error)) from None
        return line.decode("latin-1")

    def read_request(self, raw_requestline: str) -> Any:
        """Read headers and body; raises ValueError for a bad request."""
        require_request_line(raw_requestline)
        try:
            read = super().read_request(raw_requestline)
        except (HTTPException, IndexError) as error:
            raise ValueError(str(error)) from None
        require_plain(self.headers)
        self._body = self._read_body()
        return read

    def get_environ(self) -> Any:
        """Return the request for the application, with its whole body.

        The path is canonical, so that a slash inside a name divides nothing.
        """
        environ = super().get_environ()
        environ[CONNECTION] = self._connection
        environ["wsgi.url_scheme"] = "https" if self._over_tls else "http"
        environ["PATH_INFO"] = _canonical(self.path.partition("?")[0])
        if "HTTP_HOST" in environ:
            environ["HTTP_HOST"] = environ["HTTP_HOST"].removesuffix(":")  # a port may be empty
        self.wsgi_input.rfile = BytesIO(self._body)
        return environ

    def handle_one_response(self) -> None:
        """Answer the request when its turn comes; a request for health at once."""
        self._deadline.close()  # an answer may wait for MongoDB, inside which no greenlet may be killed
        if self.environ["PATH_INFO"] in HEALTH:
            super().handle_one_response()
            return
        self._waits = True
        try:
            with self.server.turns.turn(self._connection.served):
                self.server.pace.wait(self._connection.served)
                self._waits = False
                if self._socket.closed or self._saw(_RESET):  # the peer left meanwhile
                    self.close_connection = True
                    return
                self._connections.answer(self._connection, time.monotonic())
                super().handle_one_response()
        except UnavailableError:
            self._waits = False
            self.application = _busy
            super().handle_one_response()

    def process_result(self) -> None:
        """Write the application's answer."""
        now = time.monotonic()
        if getattr(self.result, "endless", False):
            self._connections.follow(self._connection, now)
            self._waits = True
        elif self._connection.state is ConnectionState.ANSWERED:
            self._connections.read(self._connection, _held(self.result), now)
        super().process_result()

    def finalize_headers(self) -> None:
        """Set the headers; an answer of unknown length to HTTP/1.0 ends with its connection."""
        super().finalize_headers()
        known = self.provided_content_length is not None or hasattr(self.result, "__len__")
        if not known and not self.response_use_chunked and self.code not in (204, 304):
            self.close_connection = True
        if self.close_connection:
            others = [header for header in self.response_headers if header[0].lower() != b"connection"]
            self.response_headers = [*others, (b"Connection", b"close")]

    def log_error(self, msg: str, *args: Any) -> None:
        """Log a bad request at level debug."""
        log.debug("%s", msg % args if args else msg)

    def log_request(self) -> None:
        """Log nothing for a request."""

    def handle_error(self, _kind: Any, value: Any, trace: Any) -> None:
        """Count a fault of the broker; a client that has left or does not read is none."""
        self.close_connection = True
        if isinstance(value, OSError | gevent.GreenletExit):
            return
        about = f"{self.command} {self.path[:200]} failed"
        self.server.counters.notice(Count.HTTP_FAILURES, about, value.with_traceback(trace))
        if not self.headers_sent:
            self._send_error_response_if_possible(500)

    def _handle_client_error(self, ex: Exception) -> Any:
        """Refuse bytes that are no request, and close the connection."""
        if isinstance(ex, OSError):
            return None
        self._note_no_request(str(ex))
        return "400", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    def _note_no_request(self, why: str) -> None:
        """Count bytes that are no request, and log them, at most one line a second."""
        self.server.counters.notice(
            Count.HTTP_BAD_REQUESTS, f"HTTP: no request from {self._connection.address}: {why[:200]}"
        )

    def _read_body(self) -> bytes:
        """Read the body of a request, before the request's deadline."""
        if self.headers.get("transfer-encoding") or self.headers.get("expect"):
            raise ValueError("a body must be sent whole, with its length")
        length = self.content_length or 0
        if length > (MOST_BODY_BYTES if self.command == "POST" else 0):
            raise ValueError("the body is too long, or not allowed here")
        body = self._came.read(length)
        if len(body) < length:
            raise ValueError("the body ends too soon")
        return body

    def _write_with_headers(self, data: bytes) -> None:
        """Write the head and a small first piece together."""
        self._corked = []
        try:
            super()._write_with_headers(data)
        finally:
            parts, self._corked = self._corked, None
        if sum(map(len, parts)) <= _PIECE:
            parts = [b"".join(parts)]
        for part in parts:
            self._sendall(part)

    def _sendall(self, data: Any) -> None:
        """Write pieces, each within its time; other connections have a turn after each."""
        if self._corked is not None:
            self._corked.append(data)
            return
        whole = memoryview(data)
        for first in range(0, len(whole), _PIECE):
            if self.response_length or first:
                self.server.pace.wait(self._connection.served)
            self._socket.sendall(whole[first : first + _PIECE])
            self._connections.took(self._connection, time.monotonic())
        self.response_length += len(whole)

    def _is_left(self) -> bool:
        """True if the peer has closed its side: it may still read, but is skipped where others wait."""
        return self._saw(_RESET | select.POLLRDHUP)

    def _saw(self, events: int) -> bool:
        try:
            watch = _poll()
            watch.register(self._socket, events)
            return bool(watch.poll(0))
        except (OSError, ValueError):  # the socket is closed
            return True

    def _close(self) -> None:
        """Close the file; with unread input Linux would reset the connection and drop the last answer."""
        try:
            self._socket.settimeout(0.0)
            if self._over_tls:
                say_goodbye(self._socket)
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(256 * 1024)  # what is left of the request is ignored
        except OSError:
            pass
        self._socket.close()


def _canonical(path: str) -> str:
    """Return the canonical form of a path: only ``A-Za-z0-9-._~`` unescaped."""
    return "/".join([quote(unquote_to_bytes(part.encode("latin-1")), safe="") for part in path.split("/")])


def _held(result: Any) -> int:
    """Return the bytes that are in memory until an answer is read."""
    held: int | None = getattr(result, "held", None)
    return sum(map(len, result)) if held is None and isinstance(result, list | tuple) else held or 0


def _busy(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer a request that is one too many."""
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else _BUSY
    head = [
        ("Content-Type", "application/json"), ("Content-Length", str(len(_BUSY))),
        ("Retry-After", "1"), ("Connection", "close"),
    ]  # fmt: skip
    start_response("503 Service Unavailable", head)
    return [body]
