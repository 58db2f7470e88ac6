"""Watches an event loop from a thread: a handler that blocks it is named in the log."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from sluicemq.complaints import log

#: Seconds for which a task may hold up the event loop before it is named.
BLOCKED_AFTER: Final = 1.0


class Watch:
    """Looks whether the loop runs, in a thread.

    ``named``: returns what a task does, or an empty text. ``closed``: called, in that thread, once the loop
    is closed before :meth:`end`.
    """

    def __init__(self, named: Callable[[asyncio.Task[Any]], str], closed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._named, self._closed = named, closed
        self._answered = True
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="sluicemq-watch", daemon=True).start()

    def end(self) -> None:
        """End the thread soon."""
        self._ended.set()

    def _run(self) -> None:
        asked_at, named = 0.0, False
        while not self._ended.wait(BLOCKED_AFTER / 4):
            if self._answered:
                asked_at, named, self._answered = monotonic(), False, False
                try:
                    self._loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed
                    self._closed()
                    return
            elif self._loop.is_closed():
                self._answered = True
            elif not named and monotonic() > asked_at + BLOCKED_AFTER:
                named = self._name()

    def _answer(self) -> None:
        self._answered = True

    def _name(self) -> bool:
        """Log which task blocks the loop, and where; False if it is none of these."""
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)
        what = "" if task is None else self._named(task)
        if not what or frame is None:
            return False
        where = traceback.extract_stack(frame)[-1]
        log.warning(
            "%s blocks the event loop for more than %g s, at %s:%s in %s: await there, or run what blocks by "
            "asyncio.to_thread, or have plain handlers with in_threads=True",
            *(what, BLOCKED_AFTER, where.filename, where.lineno, where.name),
        )
        return True
