"""The library's log, also of exceptions that the program's own code raises.

The program's handlers and filters of log lines may raise, in any thread of the library, and may wait. A line
that an I/O thread writes goes to them from a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Final

from sluicemq import forks
from sluicemq.aside import Aside, forget_threads, runs_no_user_code


class Log(logging.LoggerAdapter[logging.Logger]):
    """Writes a line, or drops it if it can't be written: no job and no confirmation waits for that."""

    _lines: Aside | None = None
    """Lines of I/O threads; each process has its own."""
    _dropped = 0

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Write a line, as if the caller had called the logger; from an I/O thread soon."""
        if not runs_no_user_code():
            self._write(level, msg, *args, stacklevel=3, **options)
        elif level >= self.logger.getEffectiveLevel():  # isEnabledFor takes a lock
            if options.get("exc_info") is True:
                options["exc_info"] = sys.exc_info()
            self._hand_over(level, msg, args, options)

    def wait(self, timeout: float) -> None:
        """Return when the lines of I/O threads are written, or after ``timeout`` seconds."""
        if self._lines is not None:
            self._lines.wait(timeout)

    def forked(self) -> None:
        """Begin without the threads and lines of the parent in the child of a fork."""
        self._lines = None
        forget_threads()

    def _hand_over(self, level: int, msg: object, args: tuple[object, ...], options: dict[str, Any]) -> None:
        if self._lines is None:
            self._lines = Aside("sluicemq-log", failed=_ignore)
        if not self._lines.offer(self._write_late, level, msg, args, options):
            self._dropped += 1

    def _write_late(self, level: int, msg: object, args: tuple[object, ...], options: dict[str, Any]) -> None:
        self._write(level, msg, *args, **options)
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._write(
                logging.WARNING, "%d lines are left out: a handler of log lines did not return", dropped
            )

    def _write(self, level: int, msg: object, *args: object, **options: Any) -> None:
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, **options)


def complain(what: str, *args: object, level: int = logging.WARNING) -> None:
    """Log an exception that goes no further, not even if a handler of log lines ends the thread."""
    with contextlib.suppress(BaseException):
        log.log(level, what, *args, exc_info=True)


def _ignore() -> None:
    """Ignore an exception that even ends a thread."""


log: Final = Log(logging.getLogger("sluicemq"), {})
forks.on_fork(log, Log.forked)
