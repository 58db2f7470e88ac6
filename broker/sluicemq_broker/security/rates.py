"""The rates of a principal: its connections are not read for a while when it has sent more."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

import gevent

from sluicemq_broker.runtime import Bucket, Count, Counters

#: Seconds for which a connection is not read, at least: a timer for each message would cost more than it.
_SHORTEST: Final = 0.02
#: Seconds of its rate that a principal may send at once after a rest.
_AT_ONCE: Final = 1.0


class Limits(NamedTuple):
    """Jobs and messages, and their bytes, that a principal may send in a second; None: any number."""

    rate: float | None = None
    bytes_rate: float | None = None


NO_LIMITS: Final = Limits()


class Sender(Protocol):
    """A connection that sends jobs or messages."""

    def pause(self, by: object) -> None:
        """Stop reading the connection."""

    def resume(self, by: object) -> None:
        """Read the connection again."""


class Rates:
    """Jobs, messages and bytes that all connections of a principal at this broker may send together.

    All that a connection has sent at once is taken, and paid for by the time in which it is not read then.
    ``now``: monotonic seconds; ``after(seconds, step)``: calls a step later.
    """

    def __init__(
        self, now: Callable[[], float] = monotonic, after: Callable[..., Any] = gevent.spawn_later
    ) -> None:
        self.held = 0
        """Times that a connection was not read for a while."""
        self._now = now
        self._after = after
        self._limits = NO_LIMITS
        self._buckets: list[Bucket | None] = [None, None]  # of jobs, and of their bytes
        self._senders: WeakSet[Sender] = WeakSet()
        self._looks = False
        self._open = False

    def use(self, limits: Limits) -> None:
        """Follow other limits; what was used before counts no more."""
        if limits != self._limits:
            self._limits = limits
            self._buckets = [None if rate is None else Bucket(rate, _AT_ONCE * rate) for rate in limits]
            self._read_on()

    def hold(self, sender: Sender, count: int, size: int) -> bool:
        """Count what a connection has sent; stop reading it, and return True, if that is too much."""
        for bucket, used in zip(self._buckets, (count, size), strict=True):
            if bucket:
                bucket.spend(used, self._now())
        if self._open or sender in self._senders or not self._wait:
            return False
        self.held += 1
        self._senders.add(sender)
        sender.pause(self)
        self._look_later()
        return True

    def open(self) -> None:
        """Read all connections from now on: the broker stops, and would lose what lies in sockets."""
        self._open = True
        self._read_on()

    @property
    def _wait(self) -> float:
        """Seconds until what was sent is paid for."""
        now = self._now()
        return max(bucket.wait(now) if bucket else 0.0 for bucket in self._buckets)

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._after(max(_SHORTEST, self._wait), self._look)

    def _look(self) -> None:
        self._looks = False
        if self._senders and self._wait and not self._open:
            self._look_later()
        else:
            self._read_on()

    def _read_on(self) -> None:
        senders, self._senders = self._senders, WeakSet()
        for each in senders:
            each.resume(self)


def charge(lane: Any, count: int, size: int, counters: Counters) -> None:
    """Count jobs or messages that a connection has sent; if its principal has sent too much, it waits."""
    principal = lane.who.principal
    if principal.rates and principal.rates.hold(lane, count, size):
        counters.notice(
            Count.THROTTLED, f"{principal.name} from {lane.peer} sends more than {_text(principal.limits)}"
        )


def _text(limits: Limits) -> str:
    texts = (
        f"{rate:g} {what} a second"
        for rate, what in zip(limits, ("jobs or messages", "bytes"), strict=True)
        if rate is not None
    )
    return " and ".join(texts)
