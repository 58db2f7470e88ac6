"""The HTTP door: where it listens, and how many connections it has.

gevent's server reads and answers; :mod:`handler` bounds what one connection may send and take,
:mod:`places` what all of them may.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import gevent
from gevent.pywsgi import WSGIServer

from sluicemq_broker.http.handler import Handler
from sluicemq_broker.http.lines import Line, Pace
from sluicemq_broker.http.places import Doing, Places
from sluicemq_broker.runtime import Count, Counters
from sluicemq_devices.sockets import Outgoing, resolved

log = logging.getLogger("broker.http")

#: Connections at once: so many, or less where the process may open few files (a share, but so many at least).
MOST_CONNECTIONS: Final = 100
_SHARE_OF_FILES: Final = 10
_FEW_CONNECTIONS: Final = 20
#: Connections that are let in in one turn of the hub, for as many files may be open beyond those counted.
_AT_ONCE: Final = 10
#: Bytes of an answer that the system may hold for a peer that reads slowly; it doubles the number.
_SENT_BUT_UNREAD: Final = 128 * 1024
#: Seconds without looking for new connections, after one could not be let in for want of files or memory.
_PAUSE: Final = 0.1
_WANTING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Application(Protocol):
    """What answers."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """One answer, in WSGI's form."""

    def close(self) -> None:
        """End the answers that would go on for ever."""


def places(counters: Counters, outgoing: Outgoing) -> Places:
    """The places of a door, as many as the limit of open files allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = files != resource.RLIM_INFINITY and files // _SHARE_OF_FILES < MOST_CONNECTIONS
    most = max(_FEW_CONNECTIONS, files // _SHARE_OF_FILES) if few else MOST_CONNECTIONS
    if few:
        log.warning("the HTTP door takes %d connections at once: %d files may be open", most, files)
    return Places(most, counters, outgoing.ration(None).hold)


class HttpDoor:
    """One address where HTTP is spoken, ``host:port``; :attr:`address` is it with the port that it got."""

    def __init__(self, address: str, application: Application, counters: Counters, places: Places) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.removeprefix("[").removesuffix("]").replace("*", ""), int(port.replace("*", "0"))
        self._application = application
        self._server = Server(self._place, application, counters, places)

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
        self._server.places.end_all(Doing.ASKING)
        self._server.stop(timeout=1.0)


class Server(WSGIServer):  # type: ignore[misc] # gevent has no types
    """gevent's server, which ends a connection for each one beyond its places."""

    max_accept = _AT_ONCE

    def __init__(
        self, place: tuple[str, int], application: Application, counters: Counters, places: Places
    ) -> None:
        self.counters = counters
        self.places = places
        self.pace = Pace()
        self.line = Line(places.most * 4 // 5, places.most, lambda: places.end_stalled(time.monotonic()))
        super().__init__(place, application, log=None, error_log=log)

    @classmethod
    def get_listener(cls, address: Any, backlog: int | None = None, _family: int | None = None) -> Any:
        """Listen at a name, an address or an interface as every door does, without one at every interface."""
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - where it says *
        family, place = resolved(address[0] or every, address[1])[0]
        return super().get_listener(place, backlog, family)

    def init_socket(self) -> None:
        """Listen; what is set here holds for each connection, as Linux has it."""
        super().init_socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BUT_UNREAD)

    def do_read(self) -> Any:
        """Accept a connection; where no file is left for it, one that only waits gives way first."""
        try:
            return super().do_read()
        except OSError as error:
            if error.errno in _WANTING:
                self.counters.notice(Count.HTTP_CONNECTIONS_CUT, f"no connection can be let in: {error}")
                if not self.places.give_way(time.monotonic()):
                    self.stop_accepting()
                    gevent.spawn_later(_PAUSE, self._start_accepting_if_started)
            return None  # any other error is that of a peer that has left already

    def do_handle(self, *args: Any) -> None:
        """Give a new connection its place and its greenlet."""
        sock, address = args
        self._spawn(Handler(sock, address, self).run)
