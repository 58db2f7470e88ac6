"""The library's log, also of exceptions that the program's own code raises.

The program's handlers and filters of log lines may raise, in any thread of the library.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final


class Log(logging.LoggerAdapter[logging.Logger]):
    """Writes a line, or drops it if it can't be written: no job and no confirmation waits for that."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Write a line, as if the caller had called the logger."""
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, stacklevel=2, **options)


log: Final = Log(logging.getLogger("sluicemq"), {})


def complain(what: str, *args: object, level: int = logging.WARNING) -> None:
    """Log an exception that goes no further, not even if a handler of log lines ends the thread."""
    with contextlib.suppress(BaseException):
        log.log(level, what, *args, exc_info=True)
