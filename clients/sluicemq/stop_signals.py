"""SIGTERM and SIGINT, which stop what runs in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any

from sluicemq.transport.connection import Connection

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SAME_SIGNAL = 1.0  # seconds: timeout(1), for instance, sends it to a process and to its group


class StopSignals:
    """Signals so far, counted in ``count``; ``on_signal`` is called for each, in any thread."""

    def __init__(self, on_signal: Callable[[], None], *, raises: bool = False) -> None:
        """``raises``: the second signal raises KeyboardInterrupt, for a main thread that runs user code."""
        self.count = 0
        self._on_signal = on_signal
        self._raises = raises
        self._first_here = 0.0
        self._first = 0.0
        self._handlers_before: list[tuple[int, Any]] = []

    @contextmanager
    def caught(self, connection: Connection) -> Iterator[None]:
        """Catch signals in the connection's thread during the block, in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Not in a Python handler, which waits until the main thread runs again: a signal just before the
        # main thread begins to wait, or to another thread, would not end the wait.
        connection.signalled = self._signalled
        fd_before = signal.set_wakeup_fd(connection.signal_fd, warn_on_full_buffer=False)
        self._handlers_before = [(number, signal.signal(number, self._in_main_thread)) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in self._handlers_before:
                signal.signal(number, handler)
            self._handlers_before = []
            signal.set_wakeup_fd(fd_before)

    def forked(self) -> None:
        """Catch no signals in the child of a fork."""
        for number, handler in self._handlers_before:
            signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
        self._handlers_before = []

    def _signalled(self, number: int) -> None:
        if number not in _SIGNALS or monotonic() < self._first + _SAME_SIGNAL:
            return
        self._first = self._first or monotonic()
        self.count += 1
        self._on_signal()

    def _in_main_thread(self, _number: int, _frame: FrameType | None) -> None:
        """Keep Python from ending the process: the file tells of the signal."""
        now = monotonic()
        if self._raises and self._first_here and now > self._first_here + _SAME_SIGNAL:
            raise KeyboardInterrupt
        self._first_here = self._first_here or now
