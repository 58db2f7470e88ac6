"""Callbacks whose errors are logged, and don't reach the code that calls them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("broker")

Arguments = ParamSpec("Arguments")


def shielded(call: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
    """Call ``call``; log an error and go on, since others wait for their calls."""
    try:
        call(*args, **kwargs)
    except Exception:
        log.exception("a callback failed")
