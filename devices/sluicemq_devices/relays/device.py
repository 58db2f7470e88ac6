"""What the three devices have in common: doors at two ends, and one order of starting and stopping."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

import gevent

from sluicemq_devices.sockets import RawDoor

HWM = 10_000
HWM_BYTES = 64 << 20
_POLL = 0.005  # seconds


class Kind(StrEnum):
    """What a device is, as it is written in the configuration and on the command line."""

    STREAMER = "streamer"
    QUEUE = "queue"
    FORWARDER = "forwarder"


class Device(abc.ABC):
    """Relays in memory between its frontend doors and its backend doors."""

    #: Seconds since some moment in the past, by which it waits as it stops.
    now: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, frontends: Sequence[RawDoor], backends: Sequence[RawDoor]) -> None:
        self._frontends = frontends
        self._backends = backends

    @property
    def addresses(self) -> list[str]:
        """Of all doors, frontends first; after :meth:`start` with the ports that the kernel chose."""
        return [door.address for door in (*self._frontends, *self._backends)]

    @property
    def connections(self) -> int:
        """How many are open at its doors."""
        return sum(door.connections for door in (*self._frontends, *self._backends))

    @property
    def received(self) -> int:
        """Messages that came in at the frontends so far."""
        return sum(door.received for door in self._frontends)

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """Messages held because nobody took them yet."""

    def start(self) -> None:
        """Open all doors, or none: OSError names the address that can't be bound."""
        with contextlib.ExitStack() as opened:
            for door in (*self._backends, *self._frontends):
                door.start()
                opened.callback(door.stop)
            opened.pop_all()

    def stop(self, deadline: float = 5.0) -> None:
        """Take no more in, pass on what is held (for up to ``deadline`` seconds), close everything."""
        for door in self._frontends:
            self._end_intake(door)
        self._wait_while(lambda: self.backlog > 0, deadline)
        self._end_work()
        for each in (*self._frontends, *self._backends):
            each.stop()

    def _end_intake(self, door: RawDoor) -> None:
        door.stop()

    def _end_work(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait for what must still come from the backends, which have got all that was held."""

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait, at most so long, for the condition to end."""
        end = self.now() + seconds
        while condition() and self.now() < end:
            gevent.sleep(_POLL)
