"""Subscriptions at this broker: their holders, and how far each has read.

The lock of a subscription is in MongoDB (``store.streams.subscriptions``). Here are the holders among this
broker's connections, so that the end of a connection frees its subscriptions at once for the next holder of
their kind. A holder at another broker is gone when that broker's lease has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import gevent

from sluicemq.protocol.errors import (
    BadStreamError,
    HeldError,
    LeaseLostError,
    NotFoundError,
    QueueFullError,
    SluiceError,
)
from sluicemq.protocol.names import KIND_RULE, QUEUE_NAME_RULE, is_kind, is_queue_name
from sluicemq.protocol.rows import SubscriptionRow
from sluicemq_broker.context import Owners
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import MOST_SUBSCRIPTIONS, Holder, Subscription, SubscriptionStore
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.stream import Stream
from sluicemq_broker.streams.streams import Streams

#: The number that stands for the end of the stream, as it is then.
NEWEST: Final = -1


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to hold a subscription. ``who``: shown to people; ``after``, ``born``: as in the store.

    ``peer``: the connection, whose rate of new names is limited; None: the operator. ``may_move``: raises
    what forbids that ``after`` moves the watermark of a subscription that is there already; as in the store.
    """

    stream: str
    name: str
    kind: str
    who: str
    after: int | None = None
    born: int = 0
    peer: str | None = None
    may_move: Callable[[Subscription], None] = lambda _found: None


class Subscriptions:
    """The subscriptions held by this broker's clients and routes, and the watermarks of all."""

    def __init__(
        self,
        streams: Streams,
        context: StreamServices,
        owners: Owners,
        store: Callable[[Stream], SubscriptionStore],
    ) -> None:
        self._streams = streams
        self._context = context
        self._owners = owners
        self.store = store
        """Return the subscriptions in the database of a stream."""
        self._numbers = itertools.count(1)
        self._here: set[str] = set()  # tokens of holders at this broker

    def hold(self, wish: Wish) -> Subscription:
        """Hold a subscription; raises :class:`Held`, which names the holder, and BadStream.

        The caller must call :meth:`vanish`, or :meth:`left` after :meth:`release`, once.
        """
        stream = self._streams.get(wish.stream)
        check_name(wish.name)
        check_kind(wish.kind)
        owner = self._owners.use()
        holder = Holder(owner, f"{owner}-{next(self._numbers)}", wish.who)
        self._here.add(holder.token)  # before its statement is sent: no other hold may take it for gone
        try:
            after, born = self._number(stream, wish.after), self._number(stream, wish.born)
            found = self.store(stream).hold(
                wish.stream,
                wish.name,
                wish.kind,
                holder,
                self._context.clock.now(),
                is_lost=partial(self._lost, stream.settings.database),
                after=after,
                initial=born or 0,
                may_make=partial(self._may_make, stream, wish.name, wish.peer),
                may_move=wish.may_move,
            )
        except BaseException:
            self._here.discard(holder.token)
            raise
        if found.holder != holder:
            self._here.discard(holder.token)
            raise _held(found)
        return found

    def mark(self, stream: str, name: str, fence: int, watermark: int) -> None:
        """Set the watermark: messages up to it are done; raises :class:`LeaseLost` if the hold has ended."""
        store = self.store(self._streams.get(stream))
        if not store.mark(stream, name, fence, watermark, self._context.clock.now()):
            raise self.late(stream, name, fence)

    def late(self, stream: str, name: str, fence: int) -> LeaseLostError:
        """Return the refusal of a watermark whose hold has ended, or is another session's; counts it."""
        self._context.counters.add(Count.LATE_WATERMARKS)
        return not_held(stream, name, fence)

    def vanish(self, held: Subscription) -> None:
        """Free a subscription for holders of its kind: its holder's connection has ended; never blocks."""
        self.left(held)
        store = self.store(self._streams.open(held.stream))
        gevent.spawn(self._vanish, partial(store.vanish, held.stream, held.name, held.fence))

    def release(self, stream: str, name: str, fence: int) -> None:
        """End the hold with this fence; may be repeated. Then call :meth:`left`."""
        self.store(self._streams.get(stream)).release(stream, name, fence)

    def left(self, held: Subscription) -> None:
        """Note that no connection here has this hold any more."""
        if held.holder:
            self._here.discard(held.holder.token)

    def free(self, stream: str, name: str) -> None:
        """Take a subscription from its holder; raises :class:`NotFound` if it has none."""
        if not self.store(self._streams.get(stream)).release(stream, name):
            raise NotFoundError(f"subscription {name!r} of stream {stream!r} is held by nobody")

    def seek(self, stream: str, name: str, watermark: int, peer: str | None = None) -> bool:
        """Set the watermark of a subscription without a holder; False: it stands there. Raises :class:`Held`.

        ``peer``: see Wish.
        """
        found = self._streams.get(stream)
        check_name(name)
        may_make = partial(self._may_make, found, name, peer)
        number = self._number(found, watermark) or 0
        store = self.store(found)
        before = store.get(stream, name)
        stands = store.seek(stream, name, number, may_make)
        if stands.kind is not None:
            raise _held(stands)
        return before is None or stands.fence != before.fence

    def delete(self, stream: str, name: str) -> None:
        """Remove a subscription; raises :class:`Held`, or :class:`NotFound`."""
        store = self.store(self._streams.get(stream))
        if not store.delete(stream, name):
            there = store.get(stream, name)
            if there is None:
                raise NotFoundError(f"stream {stream!r} has no subscription {name!r}")
            raise _held(there)

    def listed(self, stream: str | None = None) -> list[SubscriptionRow]:
        """Return all subscriptions, or those of one stream, with how far behind each is."""
        names = self._streams.names() if stream is None else [self._streams.get(stream).name]
        return [row for name in names for row in self._listed(self._streams.open(name))]

    def known(self) -> list[SubscriptionRow]:
        """Return the subscriptions of streams known here; a sweep makes those of other brokers known.

        One statement for each database, and a few for each stream with subscriptions.
        """
        found: dict[str, list[Subscription]] = {}
        for store in {stream.settings.database: self.store(stream) for stream in self._streams}.values():
            for subscription in store.of():
                found.setdefault(subscription.stream, []).append(subscription)
        streams = ((self._streams.known(name), found[name]) for name in sorted(found))
        return [row for stream, store in streams if stream for row in self._rows(stream, store)]

    def unread(self, stream: Stream) -> int | None:
        """Return the oldest message that a subscription of a stream has not read; None: there is none.

        One that nobody has held for ``unread_retention`` counts no more. One that can't be read may have read
        nothing: all is kept for it until somebody has corrected or removed it.
        """
        idle = self._context.clock.now() - stream.settings.unread_retention
        found, damaged = self.store(stream).of_stream(stream.name)
        if damaged:
            return 1
        awaited = [
            subscription.watermark + 1
            for subscription in found
            if self._is_awaited(stream, subscription, idle)
        ]
        return min(awaited, default=None)

    def _is_awaited(self, stream: Stream, subscription: Subscription, idle: float) -> bool:
        """Return True if a subscription is held, or was made or used after ``idle``."""
        if subscription.last_used >= idle:
            return True
        holder = subscription.holder
        return holder is not None and not self._lost(stream.settings.database, holder)

    def _may_make(self, stream: Stream, name: str, peer: str | None) -> None:
        what = f"subscription {name!r} of stream {stream.name!r}"
        there, now = self.store(stream).count(), self._context.timer.now()
        if there >= MOST_SUBSCRIPTIONS:
            raise QueueFullError(f"{what} can't be made: there are {there} already, which is the most")
        self._context.names.ask(what, peer, now, there=0, most=1)

    def _listed(self, stream: Stream) -> list[SubscriptionRow]:
        return self._rows(stream, self.store(stream).of(stream.name))

    def _rows(self, stream: Stream, found: list[Subscription]) -> list[SubscriptionRow]:
        if not found:
            return []
        newest, now = stream.end() - 1, self._context.clock.now()
        return [_row(stream, subscription, newest, now) for subscription in found]

    def _number(self, stream: Stream, number: int | None) -> int | None:
        return stream.end() - 1 if number == NEWEST else number

    def _vanish(self, statement: Callable[[], None]) -> None:
        """Repeat it until it is answered, or the broker stops: then the end of its lease frees the holder."""
        with suppress(SluiceError):
            self._context.retry.run(statement)

    def _lost(self, database: str | None, holder: Holder) -> bool:
        if holder.owner in self._owners.own_ids():
            return holder.token not in self._here
        return not self._owners.is_live(holder.owner, database)


def not_held(stream: str, name: str, fence: int) -> LeaseLostError:
    """Return the refusal of what only the holder under this fence may do."""
    what = f"subscription {name[:80]!r} of stream {stream[:80]!r}"
    return LeaseLostError(f"{what} is not held under {fence} by this session (any more)")


def check_name(name: object) -> str:
    """Return the name, if a subscription may have it; raises :class:`BadStream`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadStreamError(f"{str(name)[:80]!r} is no name of a subscription: {QUEUE_NAME_RULE}")


def check_kind(kind: str) -> None:
    """Raise :class:`BadStream` for a kind that none can have."""
    if not is_kind(kind):
        raise BadStreamError(f"{kind[:80]!r} is no kind of a subscription: {KIND_RULE}")


def _row(stream: Stream, found: Subscription, newest: int, now: float) -> SubscriptionRow:
    behind = max(0, newest - found.watermark)
    at = stream.store.time_of(found.watermark + 1) if behind else None
    return SubscriptionRow(
        stream=found.stream,
        name=found.name,
        watermark=found.watermark,
        behind=behind,
        seconds_behind=0.0 if at is None else round(max(0.0, now - at), 3),
        kind=found.kind,
        holder=found.holder.who if found.holder else None,
        held_at=found.held_at,
        marked_at=found.marked_at,
    )


def _held(found: Subscription) -> HeldError:
    return HeldError(_who_holds(found), found.kind or "")


def _who_holds(found: Subscription) -> str:
    what = f"subscription {found.name!r} of stream {found.stream!r} is held for {found.kind!r}"
    if found.holder:
        return f"{what} by {found.holder.who}"
    return (
        f"{what}, by one that has gone without releasing it: another of that kind may go on, or "
        f"release it with: sluicemq subscriptions release {found.stream} {found.name}"
    )


class Lags:
    """The lags of all subscriptions.

    ``rows``: as :meth:`Subscriptions.known` returns them; empty while MongoDB does not answer.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.rows: list[SubscriptionRow] = []
        self._subscriptions = subscriptions

    def measure(self) -> None:
        """Read the lags from MongoDB; called once a lease."""
        try:
            self.rows = self._subscriptions.known()
        except SluiceError:
            self.rows = []  # no figure is better than an old one
            raise
