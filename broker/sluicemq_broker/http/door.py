"""The HTTP server: gevent's own, with bounds on what comes from outside.

A connection has some seconds for each request and some for each answer, some KiB for its headers, and a body
only where it changes something. There are so many connections at once; when one more comes, the one that has
been reading its request for longest is closed, so that nobody who connects and says nothing keeps a health
check out.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from io import BytesIO
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import gevent
from gevent.pywsgi import WSGIHandler, WSGIServer

from sluicemq_broker.runtime import Count, Counters
from sluicemq_devices.doors import resolved

log = logging.getLogger("broker.http")

#: Connections at once; seconds that one may take for a request, its first bytes included, and for reading
#: an answer; bytes of all its headers.
MOST_CONNECTIONS: Final = 100
READING: Final = 20.0
WRITING: Final = 30.0
MOST_HEADER_BYTES: Final = 32 * 1024
#: What stands for a slash inside a name, in the path that an application is given.
SLASH: Final = "\0"
#: Of an order: a thousand ids.
MOST_BODY_BYTES: Final = 256 * 1024


class Application(Protocol):
    """What answers."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """One answer, in WSGI's form."""

    def close(self) -> None:
        """End the answers that would go on for ever."""


class HttpDoor:
    """One address where HTTP is spoken, ``host:port``; :attr:`address` is it with the port that it got."""

    def __init__(self, address: str, application: Application, counters: Counters) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.removeprefix("[").removesuffix("]").replace("*", ""), int(port.replace("*", "0"))
        self._application = application
        self._server = _Server(self._place, application, counters)

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._place[0], self._server.server_port or self._place[1]
        return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"

    def start(self) -> None:
        """Open it; OSError if the address is taken."""
        self._server.start()

    def stop(self) -> None:
        """Close it, and the connections that wait; answers under way have a moment."""
        self._server.close()
        self._application.close()
        self._server.hang_up()
        self._server.stop(timeout=1.0)


class _Server(WSGIServer):  # type: ignore[misc] # gevent has no types
    def __init__(self, place: tuple[str, int], application: Application, counters: Counters) -> None:
        self.counters = counters
        self.reading: dict[_Handler, float] = {}  # whose request has not come yet, the oldest first
        self.open = 0
        super().__init__(place, application, handler_class=_Handler, log=None, error_log=log)

    @classmethod
    def get_listener(cls, address: Any, backlog: int | None = None, _family: int | None = None) -> Any:
        """Listen at a name, an address or an interface as every door does, without one at every interface."""
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - where it says *
        family, place = resolved(address[0] or every, address[1])[0]
        return super().get_listener(place, backlog, family)

    def handle(self, sock: Any, address: Any) -> None:
        """One connection, in a greenlet of its own."""
        if self.open >= MOST_CONNECTIONS:
            self.counters.add(Count.HTTP_CONNECTIONS_CUT)
            if not self.reading:  # all of them are being answered
                sock.close()
                return
            next(iter(self.reading)).hang_up()
        self.open += 1
        try:
            super().handle(sock, address)
        finally:
            self.open -= 1

    def hang_up(self) -> None:
        """End the connections whose request has not come."""
        for handler in list(self.reading):
            handler.hang_up()


class _Handler(WSGIHandler):  # type: ignore[misc]
    _deadline: Any = None
    _body = b""

    def handle(self) -> None:
        self.socket.settimeout(WRITING)
        super().handle()

    def handle_one_request(self) -> Any:
        """Read one request in time, and answer it."""
        self._deadline = gevent.Timeout.start_new(READING)
        self.server.reading[self] = time.monotonic()
        try:
            return super().handle_one_request()
        except gevent.Timeout as timeout:
            if timeout is not self._deadline:
                raise
            return None
        finally:
            self._read()

    def handle_one_response(self) -> None:
        self._read()  # an answer may wait for MongoDB, inside which no greenlet is cut off
        super().handle_one_response()

    def hang_up(self) -> None:
        """End the connection; its greenlet goes on by itself."""
        self.server.reading.pop(self, None)
        self.socket.close()

    def read_request(self, raw_requestline: str) -> Any:
        try:
            read = super().read_request(raw_requestline)
        except HTTPException as error:
            raise ValueError(str(error)) from None  # else pywsgi shows where it was found
        self._body = self._read_body()
        return read

    def get_environ(self) -> Any:
        """The request as the application has it, its body whole."""
        environ = super().get_environ()
        path = self.path.partition("?")[0]
        if "%2" in path:  # a slash that is part of a name, such as a job's id, divides nothing
            path = path.replace("%2F", SLASH).replace("%2f", SLASH)
            environ["PATH_INFO"] = unquote_to_bytes(path.encode("latin-1")).decode("latin-1")
        self.wsgi_input.rfile = BytesIO(self._body)
        return environ

    def _read_body(self) -> bytes:
        """The body of an order; the deadline of the request is that of its body too."""
        if self.headers.get("transfer-encoding") or self.headers.get("expect"):
            raise ValueError("a body is sent whole here, with its length")
        length = self.content_length or 0
        if length > (MOST_BODY_BYTES if self.command == "POST" else 0):
            raise ValueError("a body that is too long, or of a request that has none")
        body: bytes = self.rfile.read(length) if length else b""
        if len(body) < length:
            raise ValueError("the body ends too soon")
        return body

    def MessageClass(self, file: Any, *arguments: Any) -> Any:  # noqa: N802 - pywsgi's name
        """The headers of a request, which are bounded."""
        return super().MessageClass(_Bounded(file, MOST_HEADER_BYTES), *arguments)

    def log_error(self, msg: str, *args: Any) -> None:
        """What a stranger has sent wrong is worth no more than a line."""
        log.debug("%s", msg % args if args else msg)

    def handle_error(self, kind: Any, value: Any, trace: Any) -> None:
        """A client that has left or does not read is no mistake of ours."""
        if isinstance(value, OSError):
            self.close_connection = True
            return
        log.error("a request failed: %s %s", self.command, self.path, exc_info=(kind, value, trace))
        if not self.headers_sent:
            self.start_response(_status(HTTPStatus.INTERNAL_SERVER_ERROR), [("Connection", "close")])
            self.write(b"the broker failed on this; its log says why\n")
        self.close_connection = True

    def _read(self) -> None:
        self.server.reading.pop(self, None)
        if self._deadline is not None:
            self._deadline.close()


class _Bounded:
    """A file of which so many bytes can be read by line."""

    def __init__(self, file: Any, room: int) -> None:
        self._file = file
        self._room = room

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self._room -= len(line)
        if self._room < 0:
            raise ValueError("the headers are too long")
        return line


def _status(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"
