"""Watchers of gevent's loop: sockets and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def switch(watcher: Any, callback: Callable[[], None], *, on: bool) -> None:
    """Start or stop a watcher, unless it is in that state already."""
    if on and not watcher.active:
        watcher.start(callback)
    elif watcher.active and not on:
        watcher.stop()
