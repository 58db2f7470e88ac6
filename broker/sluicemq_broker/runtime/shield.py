"""Telling others what became of their jobs, without their mistakes coming back to whoever tells."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("broker")

Arguments = ParamSpec("Arguments")


def shielded(tell: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
    """Call ``tell``; if it raises, that is logged: what it tells has happened, and others wait to hear."""
    try:
        tell(*args, **kwargs)
    except Exception:
        log.exception("an outcome could not be told")
