"""One real thread, also under gevent's monkey patching, and the two ways in and out of it.

The I/O thread of a connection must go on while a handler computes or a greenlet blocks, so it is a native
thread in every process. It uses no lock, event or sleep, which gevent may have replaced:

* **in**: anyone appends to a deque and rings the :class:`Wakeup`, whose pipe the thread polls;
* **out**: the thread posts a call to its mailbox. In a plain process the call runs in the I/O thread itself;
  in a patched one it runs in a greenlet, so that patched events work in it. It is the library's own code:
  that of users goes on to an :class:`~sluicemq.aside.Aside`.

Deques and plain attributes carry everything across: each operation on them is atomic.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sluicemq.aside import no_user_code
from sluicemq.complaints import complain

_RING = b"\0"  # no signal has this number


class Mailbox(Protocol):
    """The way out of the I/O thread."""

    def post(self, deliver: Callable[..., None], *args: Any) -> None:
        """Have ``deliver(*args)`` run where locks and events may be used."""

    def close(self) -> None:
        """End the mailbox: nothing is posted any more; called by the I/O thread."""

    def abandon(self) -> None:
        """Deliver nothing in the child of a fork, and take nothing from the parent."""


def start_thread(run: Callable[[], None]) -> None:
    """Run ``run`` in a native thread that does not keep the process alive."""
    monkey = sys.modules.get("gevent.monkey")
    start = monkey.get_original("_thread", "start_new_thread") if monkey else _thread.start_new_thread
    start(run, ())


def open_mailbox() -> Mailbox:
    """Return a mailbox for this process: direct, or through a greenlet if gevent has patched it."""
    return GreenMailbox() if is_patched() else DirectMailbox()


def is_patched() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class Wakeup:
    """Wakes the I/O thread's poll; one system call for any number of rings before the answer.

    Its pipe is closed with the last reference, never while someone could still ring it: a byte written to a
    closed number might land in a file opened since.
    """

    __slots__ = ("_rung", "fd", "signal_fd")

    def __init__(self) -> None:
        self.fd, self.signal_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.signal_fd, False)
        self._rung = False

    def ring(self) -> None:
        """Wake the I/O thread; from any thread, greenlet or signal handler."""
        if not self._rung:
            self._rung = True
            _write(self.signal_fd)

    def answer(self) -> list[int]:
        """Return the signals that have come while ``signal_fd`` was the process's wake-up fd.

        The I/O thread calls this before it looks at its deques, so that no later ring is missed.
        """
        try:
            signals = os.read(self.fd, 64)
        except BlockingIOError:
            signals = b""
        self._rung = False
        return list(signals.strip(_RING))

    def abandon(self) -> None:
        """Ring and receive nothing any more in the child of a fork, whose pipe is the parent's too."""
        self._rung = True
        cut_off(self.fd)
        cut_off(self.signal_fd)

    def __del__(self) -> None:
        os.close(self.fd)
        os.close(self.signal_fd)


class DirectMailbox:
    """Runs posted calls at once, in the I/O thread."""

    def post(self, deliver: Callable[..., None], *args: Any) -> None:
        """Run the call; exceptions are logged, since the I/O thread must go on."""
        run_posted(deliver, args)

    def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing: nobody posts in the child."""


class GreenMailbox:
    """Hands posted calls to a greenlet of the thread that made the mailbox.

    Each side closes its own end of the socket pair: the reader ends when the writer is closed.
    """

    def __init__(self) -> None:
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._rung = False
        self._closed = False
        reader, writer = socket.socketpair()
        self._reader, self._writer = reader.fileno(), writer.detach()
        os.set_blocking(self._writer, False)
        threading.Thread(target=self._read, args=(reader,), name="sluicemq-mailbox", daemon=True).start()

    def post(self, deliver: Callable[..., None], *args: Any) -> None:
        """Leave the call for the greenlet and wake it."""
        self._posted.append((deliver, args))
        if not self._rung:
            self._rung = True
            _write(self._writer)

    def close(self) -> None:
        """End the greenlet once it has delivered everything."""
        self._closed = True
        os.close(self._writer)

    def abandon(self) -> None:
        """End the child's copy of the greenlet, which would take the parent's wake-ups."""
        self._posted.clear()
        self._rung = True
        if not self._closed:
            end, other = _socket.socketpair()  # plain ones: gevent's hub is not there yet
            other.close()
            os.dup2(end.fileno(), self._reader, inheritable=False)  # the greenlet reads the end of its input
            end.close()
            cut_off(self._writer)

    def _read(self, reader: socket.socket) -> None:
        with reader, no_user_code():
            while reader.recv(64):
                self._rung = False
                self._deliver_all()
            self._deliver_all()

    def _deliver_all(self) -> None:
        while self._posted:
            run_posted(*self._posted.popleft())


def run_posted(call: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Run a posted call; exceptions are logged, since what delivers must go on."""
    try:
        call(*args)
    except BaseException:  # noqa: BLE001 - any exception: the I/O thread must go on
        complain("a step of the sluicemq library failed", level=logging.ERROR)


def cut_off(fd: int) -> None:
    """Close a file in this process, and keep its number: nothing else gets that, and it leads nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, fd, inheritable=False)
    os.close(nowhere)


def _write(fd: int) -> None:
    # A full pipe is good enough: the reader wakes for it.
    with contextlib.suppress(BlockingIOError):
        os.write(fd, _RING)
