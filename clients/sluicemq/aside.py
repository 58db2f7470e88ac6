"""User code runs in threads that it may hold up: callbacks, handlers of log lines, exporters of spans.

An I/O thread runs none of it: user code may wait for what only that thread brings, or for a lock whose holder
does. It hands the call over to an :class:`Aside`, which is a greenlet under gevent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Calls that wait at most, of those that may be left out.
MOST_WAITING: Final = 1000
_IDLE: Final = 1.0  # seconds until a thread without calls ends

#: Runs a call of user code soon.
CallBack = Callable[..., None]

_no_user_code: set[int] = set()


@contextmanager
def no_user_code() -> Iterator[None]:
    """Note that this thread or greenlet carries confirmations, so that no user code may hold it up."""
    me = threading.get_ident()
    _no_user_code.add(me)
    try:
        yield
    finally:
        _no_user_code.discard(me)


def forget_threads() -> None:
    """Forget the parent's threads in the child of a fork, where others may get their numbers."""
    _no_user_code.clear()


def runs_no_user_code() -> bool:
    """Return whether the current thread or greenlet is one that no user code may hold up."""
    return threading.get_ident() in _no_user_code


def refuse_to_wait(what: str) -> None:
    """Raise RuntimeError where a wait would never end: in a finalizer, which Python runs in any thread."""
    if runs_no_user_code():
        raise RuntimeError(f"{what} would wait for ever in this thread of the library: wait in another one")


class Aside:
    """Calls that run one after the other, in a thread that begins with the first and ends when idle.

    ``failed`` is called where a call has raised an exception.
    """

    def __init__(self, name: str, failed: Callable[[], None]) -> None:
        self._name = name
        self._failed = failed
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = False

    @property
    def here(self) -> bool:
        """Return whether this is its thread: what it waits for there can't be a later call."""
        return threading.current_thread() is self._thread

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Have ``function(*args)`` run after the calls before."""
        with self._change:
            self._calls.append((function, args))
            if self._thread is not None:
                self._change.notify_all()
                return
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the program ends: Python starts no threads any more
            self._thread = threading.current_thread()
            self._run_all()
            self._thread = None

    def offer(self, function: Callable[..., None], *args: Any) -> bool:
        """Post a call that may be left out; False if too many wait."""
        if len(self._calls) >= MOST_WAITING:
            return False
        self.post(function, *args)
        return True

    def wait(self, timeout: float) -> None:
        """Return when all calls so far have run, or after ``timeout`` seconds; in its thread at once."""
        if not self.here:
            with self._change:
                self._change.wait_for(lambda: not self._calls and not self._running, timeout)

    def _run(self) -> None:
        while True:
            self._run_all()
            with self._change:
                self._change.notify_all()
                if not self._calls and not self._change.wait_for(lambda: self._calls, _IDLE):
                    self._thread = None
                    return

    def _run_all(self) -> None:
        while self._calls:
            self._running = True
            function, args = self._calls.popleft()
            try:
                function(*args)
            except BaseException:  # noqa: BLE001 - also SystemExit of a callback: the others must run
                self._failed()
            self._running = False
