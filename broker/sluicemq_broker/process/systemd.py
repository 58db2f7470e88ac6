"""Messages to the service manager of a unit with ``Type=notify``: sd_notify(3), without its library.

::

    STATUS=starting, EXTEND_TIMEOUT_USEC=...           each second until the doors are open
    READY=1, then STATUS=3 queues, 12 workers, ...     the doors are open
    WATCHDOG=1                                         each second at least, as long as the hub runs
    RELOADING=1, MONOTONIC_USEC=..., then READY=1      around a SIGHUP
    STOPPING=1, then EXTEND_TIMEOUT_USEC=...           each second until the process ends
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import gevent

log = logging.getLogger("broker")

#: Names of variables by which a service manager says where to, and how often.
ADDRESS: Final = "NOTIFY_SOCKET"
VARIABLES: Final = (ADDRESS, "WATCHDOG_USEC", "WATCHDOG_PID")

#: Seconds between two messages, unless the watchdog wants more; so the status changes once a second at most.
_EVERY: Final = 1.0
_STARTING, _STOPPING = "starting:", "stopping:"


class Notifier:
    """Tells the service manager named in ``environ`` how this process is; does nothing where there is none.

    One greenlet sends, so nothing comes from a hub that is stuck, and the manager's watchdog sees it. States
    that the manager can't take at the moment are sent again, in their order.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get(ADDRESS, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: a name without a file
        self._watchdog = _watchdog(environ)
        self._status: Callable[[], str] = lambda: ""
        self._shown = ""
        self._phase = _STARTING
        # States that wait for a manager that does not read.
        self._waiting: deque[dict[str, Any]] = deque(maxlen=16)
        self._socket: socket.socket | None = None
        self._greenlet: gevent.Greenlet[[], None] | None = None

    @property
    def watched(self) -> bool:
        """True if the manager ends a process that sends no sign of life."""
        return self._watchdog > 0

    def starting(self, status: Callable[[], str]) -> None:
        """Begin to send: the process starts, and needs time for that; ``status()`` is shown from now on."""
        if not self._address:
            return
        self._status = status
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)  # no call waits
        self._greenlet = gevent.spawn(self._repeat)

    def ready(self) -> None:
        """Say that the doors are open."""
        self._phase = ""
        self._notify_manager(READY=1)

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that the configuration is being read, and at the end that the broker is ready again."""
        self._notify_manager(RELOADING=1, MONOTONIC_USEC=_microseconds(time.monotonic()))
        try:
            yield
        finally:
            self._notify_manager(READY=1)

    def stopping(self) -> None:
        """Say that the process stops, and needs time for that."""
        self._phase = _STOPPING
        self._notify_manager(STOPPING=1)

    def close(self) -> None:
        """Send nothing more."""
        if self._greenlet:
            self._greenlet.kill()  # it is inside no statement: it only sends
        if self._socket:
            self._socket.close()
        self._greenlet = self._socket = None

    def _repeat(self) -> None:
        pause = min(_EVERY, self._watchdog / 2) if self.watched else _EVERY
        while True:
            try:
                self._send()
            except Exception:
                log.exception("sending the state of the broker to the service manager failed")
            gevent.sleep(pause)

    def _notify_manager(self, **state: Any) -> None:
        if self._socket:
            self._waiting.append(state)
            self._send()

    def _send(self) -> None:
        """Send the states that wait, then what is due; stop at the first that the manager can't take."""
        while self._waiting:
            if not self._taken(self._waiting[0]):
                return
            self._waiting.popleft()
        due = self._due()
        if due and self._taken(due):
            self._shown = due.get("STATUS", self._shown)

    def _due(self) -> dict[str, Any]:
        due: dict[str, Any] = {}
        # Characters of a status: a manager shows one line.
        status = " ".join(f"{self._phase} {self._status()}".split())[:200]
        if status != self._shown:
            due["STATUS"] = status
        if self._phase:
            # Seconds that the manager gives a start or a stop from each message on.
            due["EXTEND_TIMEOUT_USEC"] = _microseconds(15.0)
        if self.watched:
            due["WATCHDOG"] = 1
        return due

    def _taken(self, fields: Mapping[str, Any]) -> bool:
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        try:
            assert self._socket  # noqa: S101
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            log.debug("the service manager does not take %s: %s", ", ".join(fields), error)
            return False
        return True


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return the seconds after which the manager wants a sign of life from this process; 0: it wants none."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    with suppress(ValueError):
        return max(0, int(environ.get("WATCHDOG_USEC", ""))) / 1e6
    return 0.0


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6)
