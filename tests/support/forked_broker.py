"""Brokers forked from one process that has loaded the program already, as it is when a broker begins.

To start Python and to load a broker takes 0.4 s of CPU each time, which several hundred starts of a run of
the tests made a quarter of all they take. What is forked is ``python -m sluicemq_broker`` at the moment at
which it reads its command line: it has no hub, no greenlet and no thread yet, and gets a folder, files and an
environment of its own::

    this process ──order, one end of a pair of sockets──▶ nursery ──fork──▶ nurse ──fork──▶ broker
         ▲                                                                    │
         └──────────── the broker's pid, and in the end its exit code ────────┘

The nursery ends with this process, for that is the other end of what it reads.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_NURSERY = """
from sluicemq_broker.__main__ import main  # patched by gevent, then loaded: as each broker begins

import gc, json, os, runpy, signal, sys
from socket import recv_fds
from _socket import socket
from gevent.monkey import get_original

fork, waitpid = get_original("os", "fork"), get_original("os", "waitpid")
heed = get_original("signal", "signal")

def begin(order):
    os.chdir(order["folder"])
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(order["environment"])
    runpy.run_path(order["packs"])["force_packs"]()
    if wanted := os.environ.pop("SLUICEMQ_FAILPOINTS", ""):
        runpy.run_path(order["failpoints"])["arm_failpoints"](wanted)
    sys.exit(main(order["arguments"]))

orders = socket(fileno=int(sys.argv[1]))
heed(signal.SIGCHLD, signal.SIG_IGN)  # nurses are waited for by nobody
gc.collect()
gc.freeze()
while True:
    text, ends, _, _ = recv_fds(orders, 1 << 20, 1)
    if not text:
        sys.exit()
    if fork():
        os.close(ends[0])
        continue
    heed(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    broker = fork()
    if not broker:
        os.close(ends[0])
        begin(json.loads(text))
    heed(signal.SIGINT, signal.SIG_IGN)
    os.write(ends[0], b"%d\\n" % broker)
    os.write(ends[0], b"%d\\n" % os.waitstatus_to_exitcode(waitpid(broker, 0)[1]))
    os._exit(0)
"""


class ForkedBroker:
    """A broker of the nursery, with those methods of :class:`subprocess.Popen` that tests call."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.returncode: int | None = None
        order = {
            "arguments": list(arguments),
            "folder": str(folder),
            "log": str(log),
            "environment": dict(environment),
            "failpoints": str(Path(__file__).with_name("failpoints.py")),
            "packs": str(Path(__file__).with_name("forced_packs.py")),
        }
        told, end = socket.socketpair()
        with told, end:
            socket.send_fds(nursery(), [json.dumps(order).encode()], [end.fileno()])
            self._lines = told.makefile("rb")
        self._reading = threading.Lock()
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        with suppress(TimeoutError):
            self._await(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit code. TimeoutExpired after ``timeout`` seconds."""
        try:
            return self._await(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("a forked broker", timeout or 0.0) from None

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _await(self, timeout: float | None) -> int:
        if self.returncode is None and not select.select([self._lines], [], [], timeout)[0]:
            raise TimeoutError
        with self._reading:
            if self.returncode is None:
                self.returncode = int(self._lines.readline())
        return self.returncode


_lock = threading.Lock()
_orders: list[socket.socket] = []


def nursery() -> socket.socket:
    """Return where orders go; the nursery begins with the first call. Processes forked after it share it."""
    with _lock:
        if not _orders:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, "-P", "-c", _NURSERY, str(number)]
                subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])
            _orders.append(ours)
        return _orders[0]
