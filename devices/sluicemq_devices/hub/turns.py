"""Long work in short turns of the hub, so that all connections have theirs in between."""

from __future__ import annotations

from collections.abc import Callable

import gevent

_MOMENT = 1e-9  # seconds; a sleep of 0 would run before timers and starve them


def in_turns(step: Callable[[], bool]) -> None:
    """Call ``step`` now, and then once in each turn of the hub while it returns True."""
    if step():
        gevent.spawn(_go_on, step)


def _go_on(step: Callable[[], bool]) -> None:
    gevent.sleep(_MOMENT)
    while step():
        gevent.sleep(_MOMENT)
