"""What all doors of one process share."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import zmq
from gevent import get_hub

from devices import zap
from devices.port import Message, Port

_log = logging.getLogger("devices")
_FDS_PER_CONNECTION = 3  # of a shared door: TCP, both ends of the inner connection; a lane has one
_MOST_CONNECTIONS = 30_000  # whatever the limit of open files, for the memory they take
_FOLDER = "sluicemq-doors-"


class Switchboard:
    """The ZeroMQ context, the private folder of inner addresses, the ZAP handler, the budget, notices.

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
        self._numbers = itertools.count(1)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._folder: Path | None = None
        self._zap: Port | None = None

    def start(self) -> None:
        """Open the context and begin to answer ZAP requests."""
        if self._context:
            return
        files = _raise_limit_of_files()
        self._last_file = files - self._reserve_fds // 4
        self.max_connections = self._wanted or self._affordable(files)
        _remove_left_behind()
        # 0700: nobody else gets past the gates.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        self._context = zmq.Context()
        self._zap = _answer_zap(self._context)

    def stop(self) -> None:
        """Close the context; all doors must be stopped."""
        if not (self._context and self._folder and self._zap):
            return
        self._zap.close(0)
        # In a thread: term() blocks until libzmq's thread has closed every socket.
        get_hub().threadpool.apply(self._context.term)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._context = self._folder = self._zap = None

    def socket(self, kind: str, domain: str) -> zmq.Socket[bytes]:
        """Open a socket of this kind ("PULL", "ROUTER", …) that is strict with whoever is behind it.

        Raises OSError when there is no file left for it.
        """
        if not self._context:
            raise RuntimeError("the switchboard is not started")
        socket = _open(self._context, kind)
        socket.linger = 0
        socket.rcvhwm = 0  # always drained by its port; a full pipe and heartbeats make libzmq abort
        socket.backlog = 4096
        socket.handshake_ivl = int(self.handshake * 1000)
        socket.zap_domain = domain.encode()
        return socket

    def bind(self, socket: zmq.Socket[bytes]) -> str:
        """Bind it to a new path of the private folder, which is returned.

        The inner socket binds and the gate connects: the other way round libzmq throws away what
        a producer sent just before it closed.
        """
        path = f"{self._folder}/{next(self._numbers)}"
        socket.bind(f"ipc://{path}")
        return path

    def admit(self, file: int) -> bool:
        """Take one connection, with this file number, out of the budget; False: there is none left.

        Files are numbered from the lowest free one, so a high number says that nearly all are open,
        whatever opened them; libzmq aborts the process when it finds none left.
        """
        if self.connections >= self.max_connections or file >= self._last_file:
            return False
        self.connections += 1
        return True

    def release(self) -> None:
        """Give back what :meth:`admit` took."""
        self.connections -= 1

    def _affordable(self, files: int) -> int:
        return max(1, min(_MOST_CONNECTIONS, (files - self._reserve_fds) // _FDS_PER_CONNECTION))


def _raise_limit_of_files() -> int:
    """Raise the limit of open files to the most allowed, which is returned."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _remove_left_behind() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).split("-")[0]
        if pid.isdigit() and not _lives(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays: it can't be removed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: str) -> zmq.Socket[bytes]:
    try:
        return context.socket(zmq.SocketType[kind])
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"no {kind} socket can be opened: {error.strerror}") from error


def _answer_zap(context: zmq.Context[zmq.Socket[bytes]]) -> Port:
    def answer(requests: list[Message]) -> None:
        for request in requests:
            port.send(zap.answer(request))

    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.rcvhwm = socket.sndhwm = 0
    socket.bind(zap.ADDRESS)
    port = Port(socket, answer)
    port.start()
    return port


def _log_notice(kind: str, text: str) -> None:
    _log.warning("%s: %s", kind, text)
