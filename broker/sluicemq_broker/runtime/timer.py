"""Monotonic time of this process, and waits for it. Tests replace it by virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent.event import Event


class Timer:
    """Monotonic seconds and waits; for the time of day see :class:`~sluicemq_broker.store.ServerClock`."""

    #: Return seconds since some moment in the past.
    now: Callable[[], float] = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        """Let other greenlets run for these seconds."""
        gevent.sleep(seconds)

    def after(self, seconds: float, step: Callable[..., object], *arguments: object) -> None:
        """Run ``step`` in a greenlet of its own after these seconds."""
        gevent.spawn_later(seconds, step, *arguments)

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until an event is set; False after these seconds."""
        return bool(event.wait(seconds))
