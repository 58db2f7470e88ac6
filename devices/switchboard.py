"""What all doors of one process share."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable

_log = logging.getLogger("devices")
_MOST_CONNECTIONS = 30_000  # whatever the limit of open files, for the memory they take


class Switchboard:
    """The budget of connections, and who is told what goes wrong on them.

    ``notice(kind, text)`` is told what went wrong on a connection: ``kind`` is a counter's name
    (``connections_refused``, ``connections_cut``, ``replies_dropped``, ``dial_failed``), ``text`` says
    who and why. It may be called often: log it with a limit.
    """

    def __init__(
        self,
        *,
        notice: Callable[[str, str], None] | None = None,
        max_connections: int | None = None,
        reserve_fds: int = 256,
        handshake: float = 10.0,
    ) -> None:
        """``handshake``: seconds in which a client must have finished its ZMTP handshake."""
        self.notice = notice or _log_notice
        self.max_connections = max_connections or 0
        self.connections = 0
        self.handshake = handshake
        self._wanted = max_connections
        self._reserve_fds = reserve_fds
        self._last_file = 0

    def start(self) -> None:
        """Raise the limit of open files to the most allowed, from which the budget follows."""
        files = _raise_limit_of_files()
        self._last_file = files - self._reserve_fds // 4
        self.max_connections = self._wanted or max(1, min(_MOST_CONNECTIONS, files - self._reserve_fds))

    def stop(self) -> None:
        """Admit nobody any more."""
        self.max_connections = 0

    def admit(self, file: int) -> bool:
        """Take one connection, with this file number, out of the budget; False: there is none left.

        Files are numbered from the lowest free one, so a high number says that nearly all are open,
        whatever opened them.
        """
        if self.connections >= self.max_connections or file >= self._last_file:
            return False
        self.connections += 1
        return True

    def release(self) -> None:
        """Give back what :meth:`admit` took."""
        self.connections -= 1


def _raise_limit_of_files() -> int:
    """Raise the limit of open files to the most allowed, which is returned."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _log_notice(kind: str, text: str) -> None:
    _log.warning("%s: %s", kind, text)
