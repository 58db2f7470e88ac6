"""The HTTP door: its address, and how many connections it accepts.

:mod:`handler` bounds what one connection may send and read, :mod:`connections` what all of them may.
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

from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.http.connections import Connections, ConnectionState
from sluicemq_broker.http.fair_turns import FairTurns, HubPace
from sluicemq_broker.http.handler import Handler
from sluicemq_broker.http.tls import Tls
from sluicemq_broker.runtime import Count, Counters
from sluicemq_devices.sockets import Outgoing, resolved

log = logging.getLogger("broker.http")

#: Connections at one time.
MOST_CONNECTIONS: Final = 100
#: Errors of a connection that found no free file or memory.
_WANTING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Application(Protocol):
    """A WSGI application that can end its endless answers, and use other settings."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Use other live settings."""

    def close(self) -> None:
        """End event streams."""


def limited_connections(counters: Counters, outgoing: Outgoing) -> Connections:
    """Return the connections of a door; where the process may open few files, a tenth of those, or 20."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = files != resource.RLIM_INFINITY and files // 10 < MOST_CONNECTIONS
    most = max(20, files // 10) if few else MOST_CONNECTIONS
    if few:
        log.warning("the HTTP door accepts %d connections: the limit of open files is %d", most, files)
    return Connections(most, counters, outgoing.ration(None).hold)


class HttpDoor:
    """The HTTP server at ``host:port``; :attr:`address` has the port that it got."""

    def __init__(
        self,
        settings: BrokerSettings,
        application: Application,
        counters: Counters,
        connections: Connections,
        tls: Tls,
    ) -> None:
        host, _, port = settings.http.rpartition(":")
        self._place = host.removeprefix("[").removesuffix("]").replace("*", ""), int(port.replace("*", "0"))
        self._application = application
        self._tls = tls
        self._server = Server(self._place, application, counters, connections, self._tls)

    @property
    def address(self) -> str:
        """The address where it listens."""
        host, port = self._place[0], self._server.server_port or self._place[1]
        return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"

    @property
    def scheme(self) -> str:
        """The scheme of its URL: ``http`` or ``https``."""
        return "https" if self._tls else "http"

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Use other live settings, and the certificate as it is in its files now."""
        self._tls.reconfigure(settings)
        self._application.reconfigure(settings)

    def start(self) -> None:
        """Listen; raises OSError if the address is taken."""
        self._server.start()
        self._tls.announce()

    def stop(self) -> None:
        """Stop listening, close idle connections, and give answers under way one second."""
        self._server.close()
        self._application.close()
        self._server.connections.end_all(ConnectionState.IDLE)
        self._server.stop(timeout=1.0)


class Server(WSGIServer):  # type: ignore[misc] # gevent has no types
    """gevent's server, which closes an idle connection for each one too many."""

    max_accept = 10  # in one turn of the hub: as many files may be open beyond those counted

    def __init__(
        self,
        place: tuple[str, int],
        application: Application,
        counters: Counters,
        connections: Connections,
        tls: Tls,
    ) -> None:
        self.tls = tls
        self.counters = counters
        self.connections = connections
        self.pace = HubPace()
        self.turns = FairTurns(
            connections.most * 4 // 5, connections.most, lambda: connections.end_stalled(time.monotonic())
        )
        super().__init__(place, application, log=None, error_log=log)

    @classmethod
    def get_listener(cls, address: Any, backlog: int | None = None, _family: int | None = None) -> Any:
        """Listen at a name, an address or an interface; without one at all interfaces."""
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - where it says *
        family, place = resolved(address[0] or every, address[1])[0]
        return super().get_listener(place, backlog, family)

    def init_socket(self) -> None:
        """Listen; on Linux each connection inherits the options that are set here."""
        super().init_socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bytes of an answer that Linux may hold for a peer that reads slowly; it doubles the number
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)

    def do_read(self) -> Any:
        """Accept a connection; where no file is left for it, an idle one is closed first."""
        try:
            return super().do_read()
        except OSError as error:
            if error.errno in _WANTING:
                self.counters.notice(
                    Count.HTTP_CONNECTIONS_CUT, f"HTTP: no connection can be accepted: {error}"
                )
                if not self.connections.give_way(time.monotonic()):
                    self.stop_accepting()
                    # There is no free file, or memory
                    gevent.spawn_later(0.1, self._start_accepting_if_started)
            return None  # other errors: the peer has left already

    def do_handle(self, *args: Any) -> None:
        """Serve a new connection in a greenlet."""
        sock, address = args
        self._spawn(Handler(sock, address, self).run)
