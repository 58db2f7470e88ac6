"""The library's log, and what goes into it of the program's own exceptions.

The program's handlers and filters of log lines may raise, in whatever thread of the library there is.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final


class Log(logging.LoggerAdapter[logging.Logger]):
    """Writes a line, or leaves it out if it can't be written: no job and no confirmation waits for that."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Write it, as the line of who has called this."""
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, stacklevel=2, **options)


log: Final = Log(logging.getLogger("sluicemq"), {})


def complain(what: str, *args: object, level: int = logging.WARNING) -> None:
    """Log what was raised and goes no further, not even where a handler of log lines ends the thread."""
    with contextlib.suppress(BaseException):
        log.log(level, what, *args, exc_info=True)
