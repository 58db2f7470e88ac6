"""TLS of the HTTP door: its certificate, which SIGHUP reads again, and the handshake of a connection."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from typing import Any, Final

import gevent
from gevent.ssl import PROTOCOL_TLS_SERVER, SSLContext

from sluicemq_broker.config import BrokerSettings, Validity, day, load_certificate, validity

log = logging.getLogger("broker.http")

#: Seconds in which a peer must have said enough for the handshake to be done.
HANDSHAKE: Final = 10.0


class Tls:
    """The certificate of a door; without one the door speaks plain HTTP."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._context = _context(settings)
        self._validity = _validity(settings)

    def __bool__(self) -> bool:
        return self._context is not None

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Read the files again, for new connections; where they are wrong the former certificate stays."""
        apply = gevent.get_hub().threadpool.apply
        try:
            self._context = apply(_context, (settings,))
        except ValueError as error:
            log.error("the HTTP door keeps its former certificate: %s", error)  # noqa: TRY400
        else:
            self._validity = apply(_validity, (settings,))
        self.announce()

    def announce(self) -> None:
        """Log until when the certificate holds."""
        if self._validity is None:
            return
        if problem := self._validity.problem():
            log.warning("the certificate of the HTTP door %s; renew it, and send SIGHUP", problem)
        else:
            log.info("the certificate of the HTTP door holds until %s", day(self._validity.ends))

    @property
    def left(self) -> float | None:
        """Seconds for which the certificate still holds; None: there is none."""
        return self._validity.ends - time.time() if self._validity else None

    def wrap(self, sock: Any) -> Any:
        """Return the socket of a connection for its handshake; raises OSError if the peer has left."""
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def await_hello(sock: Any) -> bool:
    """Wait until the peer says anything; False: it has left. Nothing was computed for it until then."""
    sock.settimeout(HANDSHAKE)
    return bool(sock.recv(1, socket.MSG_PEEK))


def shake_hands(sock: Any) -> None:
    """Do the handshake in time; raises OSError."""
    try:
        with gevent.Timeout(HANDSHAKE):
            sock.do_handshake()
    except gevent.Timeout:
        raise TimeoutError("no TLS handshake in time") from None


def say_goodbye(sock: Any) -> None:
    """Tell the peer that nothing more comes, if this can be sent now: else it would suspect a cut."""
    with suppress(OSError, ValueError):  # it waits for the peer's goodbye, which nobody needs
        sock.unwrap()


def _validity(settings: BrokerSettings) -> Validity | None:
    return validity(settings.http_tls_cert) if settings.http_tls_cert else None


def _context(settings: BrokerSettings) -> Any:
    if settings.http_tls_cert is None or settings.http_tls_key is None:
        return None
    return load_certificate(SSLContext(PROTOCOL_TLS_SERVER), settings.http_tls_cert, settings.http_tls_key)
