"""Subscriptions at this broker: who holds which on behalf of a connection, and how far each has come.

The lock lies in MongoDB (``store.subscriptions``); here is who of this broker's connections has it, so that a
holder whose connection ends makes room for the next of its kind at once. A holder at another broker is lost
when that broker's lease has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import gevent

from sluicemq.protocol.errors import BadStream, Held, LeaseLost, NotFound, QueueFull, SluiceError
from sluicemq.protocol.names import KIND_RULE, QUEUE_NAME_RULE, is_kind, is_queue_name
from sluicemq_broker.context import Owners
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Holder, Subscription, SubscriptionStore
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.stream import Stream
from sluicemq_broker.streams.streams import Streams

#: Subscriptions in one database, at most.
_MOST_SUBSCRIPTIONS: Final = 10_000
#: What is asked for where the end of the stream is meant, as it is then.
NEWEST: Final = -1


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to hold a subscription. ``who``: shown to people; ``after``, ``born``: as in the store.

    ``peer``: the connection, for which the rate of new names holds; None: the operator wants it.
    """

    stream: str
    name: str
    kind: str
    who: str
    after: int | None = None
    born: int = 0
    peer: str | None = None


class Subscriptions:
    """The subscriptions that this broker's clients and routes hold, and the watermarks of all."""

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
        """Those in the database of a stream."""
        self._numbers = itertools.count(1)
        self._here: set[str] = set()  # tokens of holders at this broker that are there

    def hold(self, wish: Wish) -> Subscription:
        """Hold it; raises :class:`Held`, which says by whom, and BadStream, where there is no such stream.

        Whoever gets it calls :meth:`vanish`, or :meth:`left` after :meth:`release`, once.
        """
        stream = self._streams.get(wish.stream)
        check_name(wish.name)
        check_kind(wish.kind)
        owner = self._owners.use()
        holder = Holder(owner, f"{owner}-{next(self._numbers)}", wish.who)
        self._here.add(holder.token)  # from before its statement is sent: nobody here may take it for lost
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
            )
        except BaseException:
            self._here.discard(holder.token)
            raise
        if found.holder != holder:
            self._here.discard(holder.token)
            raise _held(found)
        return found

    def mark(self, stream: str, name: str, fence: int, watermark: int) -> None:
        """Messages up to there are worked on; raises :class:`LeaseLost` where the hold has ended."""
        store = self.store(self._streams.get(stream))
        if not store.mark(stream, name, fence, watermark, self._context.clock.now()):
            self._context.counters.add(Count.LATE_WATERMARKS)
            raise LeaseLost(f"subscription {name!r} of stream {stream!r} is not held any more under {fence}")

    def vanish(self, held: Subscription) -> None:
        """The holder has gone without a word; never blocks. Whoever is of its kind may take over."""
        self.left(held)
        store = self.store(self._streams.open(held.stream))
        gevent.spawn(self._vanish, partial(store.vanish, held.stream, held.name, held.fence))

    def release(self, stream: str, name: str, fence: int) -> None:
        """The hold with this fence is given up; repeating it is harmless. Then call :meth:`left`."""
        self.store(self._streams.get(stream)).release(stream, name, fence)

    def left(self, held: Subscription) -> None:
        """Nobody here has this hold any more."""
        if held.holder:
            self._here.discard(held.holder.token)

    def free(self, stream: str, name: str) -> None:
        """Take it from whoever has it; raises :class:`NotFound` where nobody does."""
        if not self.store(self._streams.get(stream)).release(stream, name):
            raise NotFound(f"subscription {name!r} of stream {stream!r} is held by nobody")

    def seek(self, stream: str, name: str, watermark: int, peer: str | None = None) -> None:
        """Have it go on behind this message; raises :class:`Held`. ``peer``: as of a :class:`Wish`."""
        found = self._streams.get(stream)
        check_name(name)
        may_make = partial(self._may_make, found, name, peer)
        stands = self.store(found).seek(stream, name, self._number(found, watermark) or 0, may_make)
        if stands.kind is not None:
            raise _held(stands)

    def delete(self, stream: str, name: str) -> None:
        """Forget it; raises :class:`Held`, or :class:`NotFound`."""
        store = self.store(self._streams.get(stream))
        if not store.delete(stream, name):
            there = store.get(stream, name)
            if there is None:
                raise NotFound(f"stream {stream!r} has no subscription {name!r}")
            raise _held(there)

    def listed(self, stream: str | None = None) -> list[dict[str, Any]]:
        """All, or those of one stream: how each stands, and how far behind it is."""
        names = self._streams.names() if stream is None else [self._streams.get(stream).name]
        return [row for name in names for row in self._listed(self._streams.open(name))]

    def known(self) -> list[dict[str, Any]]:
        """The same of the streams that are known here: those that others have made are, after a sweep.

        A statement for each database, and a few for each stream that has subscriptions.
        """
        found: dict[str, list[Subscription]] = {}
        for store in {each.settings.database: self.store(each) for each in self._streams}.values():
            for each in store.of():
                found.setdefault(each.stream, []).append(each)
        streams = ((self._streams.known(name), found[name]) for name in sorted(found))
        return [row for stream, each in streams if stream for row in self._rows(stream, each)]

    def unread(self, stream: Stream) -> int | None:
        """The oldest message that some subscription of a stream has not read; None: there is none."""
        return min((each.watermark + 1 for each in self.store(stream).of(stream.name)), default=None)

    def _may_make(self, stream: Stream, name: str, peer: str | None) -> None:
        what = f"subscription {name!r} of stream {stream.name!r}"
        there, now = self.store(stream).count(), self._context.timer.now()
        if there >= _MOST_SUBSCRIPTIONS:
            raise QueueFull(f"{what} can't be made: there are {there} already, which is the most")
        self._context.names.ask(what, peer, now, there=0, most=1)

    def _listed(self, stream: Stream) -> list[dict[str, Any]]:
        return self._rows(stream, self.store(stream).of(stream.name))

    def _rows(self, stream: Stream, found: list[Subscription]) -> list[dict[str, Any]]:
        if not found:
            return []
        newest, now = stream.end() - 1, self._context.clock.now()
        return [_row(stream, each, newest, now) for each in found]

    def _number(self, stream: Stream, number: int | None) -> int | None:
        return stream.end() - 1 if number == NEWEST else number

    def _vanish(self, statement: Callable[[], None]) -> None:
        """Until it is answered, or the broker stops: then its lease ends, which says the same."""
        with suppress(SluiceError):
            self._context.retry.run(statement)

    def _lost(self, database: str | None, holder: Holder) -> bool:
        if holder.owner in self._owners.mine():
            return holder.token not in self._here
        return not self._owners.is_live(holder.owner, database)


def check_name(name: object) -> str:
    """The name, if a subscription may have it; raises :class:`BadStream`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadStream(f"{str(name)[:80]!r} is no name of a subscription: {QUEUE_NAME_RULE}")


def check_kind(kind: str) -> None:
    """Raises :class:`BadStream` if there can be no such kind."""
    if not is_kind(kind):
        raise BadStream(f"{kind[:80]!r} is no kind of a subscription: {KIND_RULE}")


def _row(stream: Stream, each: Subscription, newest: int, now: float) -> dict[str, Any]:
    behind = max(0, newest - each.watermark)
    at = stream.store.time_of(each.watermark + 1) if behind else None
    return {
        "stream": each.stream,
        "name": each.name,
        "watermark": each.watermark,
        "behind": behind,
        "seconds_behind": 0.0 if at is None else round(max(0.0, now - at), 3),
        "kind": each.kind,
        "holder": each.holder.who if each.holder else None,
        "held_at": each.held_at,
        "marked_at": each.marked_at,
        "fence": each.fence,
    }


def _held(found: Subscription) -> Held:
    return Held(_who_holds(found), found.kind or "")


def _who_holds(found: Subscription) -> str:
    what = f"subscription {found.name!r} of stream {found.stream!r} is held for {found.kind!r}"
    if found.holder:
        return f"{what} by {found.holder.who}"
    return (
        f"{what}, by one that has gone without releasing it: another of that kind may go on, or "
        f"release it with: sluicemq stream release {found.stream} {found.name}"
    )
