"""Long work in short turns of the hub, so that all connections have theirs in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import gevent

#: Seconds to sleep until the next turn of the hub: a sleep of 0 would run before timers and starve them.
NEXT_TURN: Final = 1e-9


def let_others_run() -> None:
    """Wait for the next turn of the hub, so that timers and other greenlets run before."""
    gevent.sleep(NEXT_TURN)


def in_turns(step: Callable[[], bool]) -> None:
    """Call ``step`` now, and then once in each turn of the hub while it returns True."""
    if step():
        gevent.spawn(_go_on, step)


def _go_on(step: Callable[[], bool]) -> None:
    let_others_run()
    while step():
        let_others_run()
