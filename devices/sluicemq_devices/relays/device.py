"""The base of the three devices: doors at two ends, and one order of starting and stopping."""

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
    """Kind of a device, as written in the configuration and on the command line."""

    STREAMER = "streamer"
    QUEUE = "queue"
    FORWARDER = "forwarder"


class Device(abc.ABC):
    """Relays in memory between its frontend doors and its backend doors."""

    #: The clock for the waits of a stop, in monotonic seconds.
    now: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, frontends: Sequence[RawDoor], backends: Sequence[RawDoor]) -> None:
        self._frontends = frontends
        self._backends = backends

    @property
    def addresses(self) -> list[str]:
        """Addresses of all doors, frontends first; after :meth:`start` with the ports the kernel chose."""
        return [door.address for door in (*self._frontends, *self._backends)]

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return sum(door.connections for door in (*self._frontends, *self._backends))

    @property
    def received(self) -> int:
        """Messages that came in at the frontends so far."""
        return sum(door.received for door in self._frontends)

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """Number of messages held because no peer has taken them yet."""

    def start(self) -> None:
        """Open all doors, or none: OSError names the address that can't be bound."""
        with contextlib.ExitStack() as opened:
            for door in (*self._backends, *self._frontends):
                door.start()
                opened.callback(door.stop)
            opened.pop_all()

    def stop(self, deadline: float = 5.0) -> None:
        """Stop reading, pass on what is held (for up to ``deadline`` seconds), close everything."""
        for door in self._frontends:
            self._end_intake(door)
        self._wait_while(lambda: self.backlog > 0, deadline)
        self._end_work()
        for end in (*self._frontends, *self._backends):
            end.stop()

    def _end_intake(self, door: RawDoor) -> None:
        door.stop()

    def _end_work(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait for answers that must still come from the backends, which have all that was held."""

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition ends, for ``seconds`` at most."""
        end = self.now() + seconds
        while condition() and self.now() < end:
            gevent.sleep(_POLL)
