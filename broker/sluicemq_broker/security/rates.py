"""The rates of a principal: its connections are not read for a while when it has sent more."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

import gevent

from sluicemq.protocol.errors import QueueFullError
from sluicemq_broker.runtime import Bucket, Count, Counters


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

    All that a connection has sent at once is taken, and paid for by the time in which nothing more is taken
    from any connection of the principal, also from those that it opens meanwhile.
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
        self._check_pending = False
        self._open = False

    def use(self, limits: Limits) -> None:
        """Follow other limits; what was used before counts no more."""
        if limits != self._limits:
            self._limits = limits
            self._buckets = [None if rate is None else Bucket(rate, rate) for rate in limits]
            self._resume_senders()

    def hold(self, sender: Sender, count: int, size: int) -> bool:
        """Count what a connection has sent; stop reading it, and return True, if that is too much."""
        self.spend(count, size)
        return sender not in self._senders and self.in_debt(sender)

    def spend(self, count: int, size: int) -> None:
        """Count what came on a connection that is read on: its principal pays with the others."""
        for bucket, used in zip(self._buckets, (count, size), strict=True):
            if bucket:
                bucket.spend(used, self._now())

    def in_debt(self, sender: Sender) -> bool:
        """Return whether nothing is taken of this connection now; then it is not read until all is paid."""
        if self._open or not self._wait:
            return False
        if sender not in self._senders:
            self.held += 1
            self._senders.add(sender)
            sender.pause(self)
            self._check_later()
        return True

    def pay(self, count: int) -> bool:
        """Count jobs of a request that can't wait; False: it must not be carried out now."""
        if self._wait and not self._open:
            return False
        if self._buckets[0]:
            self._buckets[0].spend(count, self._now())
        return True

    def open(self) -> None:
        """Read all connections from now on: the broker stops, and would lose what lies in sockets."""
        self._open = True
        self._resume_senders()

    @property
    def _wait(self) -> float:
        """Seconds until what was sent is paid for."""
        now = self._now()
        return max(bucket.wait(now) if bucket else 0.0 for bucket in self._buckets)

    def _check_later(self) -> None:
        if not self._check_pending:
            self._check_pending = True
            self._after(max(0.02, self._wait), self._check)  # a timer for each message would cost more

    def _check(self) -> None:
        self._check_pending = False
        if self._senders and self._wait and not self._open:
            self._check_later()
        else:
            self._resume_senders()

    def _resume_senders(self) -> None:
        senders, self._senders = self._senders, WeakSet()
        for sender in senders:
            sender.resume(self)


def charge(lane: Any, count: int, size: int, counters: Counters) -> None:
    """Count jobs or messages that a connection has sent; if its principal has sent too much, it waits."""
    principal = lane.who.principal
    if principal.rates and principal.rates.hold(lane, count, size):
        counters.notice(Count.THROTTLED, _too_much(lane))


def put_back(lane: Any, messages: list[Any], counters: Counters) -> bool:
    """Return True if a connection's messages were put back until its principal has paid for earlier ones."""
    if takes(lane, counters):
        return False
    lane.take_back(messages)
    return True


def takes(lane: Any, counters: Counters) -> bool:
    """Return False while nothing is taken of this connection; then it is not read until all is paid.

    Ask when a large message begins, too (``lane.on(large=...)``): it stays in the kernel.
    """
    rates = lane.who.principal.rates
    if rates is None:
        return True
    held = rates.held
    if not rates.in_debt(lane):
        return True
    if rates.held != held:
        counters.notice(Count.THROTTLED, _too_much(lane))
    return False


def pay_for_one(principal: Any) -> None:
    """Count a job that a request pushes which is not put back; raises QueueFull if there were too many."""
    rates = principal.rates
    if rates is not None and not rates.pay(1):
        raise QueueFullError(
            f"{principal.name} sends more than {_text(principal.limits)}: try again in a moment"
        )


def _too_much(lane: Any) -> str:
    principal = lane.who.principal
    return f"{principal.name} from {lane.peer} sends more than {_text(principal.limits)}"


def _text(limits: Limits) -> str:
    texts = (
        f"{rate:g} {what} a second"
        for rate, what in zip(limits, ("jobs or messages", "bytes"), strict=True)
        if rate is not None
    )
    return " and ".join(texts)
