"""Log lines about what the program's own code has raised."""

from __future__ import annotations

import contextlib
import logging


def complain(what: str, *args: object, level: int = logging.WARNING) -> None:
    """Log what was raised and goes no further, whatever the program's own handlers of log lines raise."""
    with contextlib.suppress(BaseException):
        logging.getLogger("sluicemq").log(level, what, *args, exc_info=True)
