"""The time of this process: its clock, and what waits for it. A test gives another one."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent.event import Event


class Timer:
    """Monotonic time in seconds, and waits for it; nothing here says what time of day it is."""

    #: Seconds since some moment in the past.
    now: Callable[[], float] = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        gevent.sleep(seconds)

    def after(self, seconds: float, step: Callable[..., object], *arguments: object) -> None:
        """Do something, in a greenlet of its own, so many seconds from now."""
        gevent.spawn_later(seconds, step, *arguments)

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until an event is set; False if so many seconds have passed before."""
        return bool(event.wait(seconds))
