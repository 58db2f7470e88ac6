"""Subscriptions in MongoDB: how far a name has read its stream, and who may go on.

One document each, in the collection ``subscriptions`` of the stream's database::

    {_id: "prices/sums", stream, name, watermark: 1200, fence: 7, marked_at?,
     kind?: "update", holder?: {owner, token, who}, held_at?}

``watermark``: the number of the last message that was worked on. ``kind`` is the lock: there while
somebody holds the subscription, or held it and ended without giving it back. ``holder`` is gone in the second
case, or its ``owner`` (a broker) has no live lease any more: then whoever is of the same kind takes over, and
no other kind may. ``fence`` rises each time that the lock changes hands or is given up, so it names
one hold for ever: a watermark is stored only under the fence of the hold it was reached in.

Every change is one statement on one document, guarded by the fence that was read before. Repeating any of
them after a lost reply is harmless: who holds is told by ``token``, and what names an old fence changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.values import date, seconds

#: So often another may change a subscription between reading it and holding it.
_TRIES: Final = 20

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds: under a broker's owner id, by a token of that broker's, shown to people as ``who``."""

    owner: str
    token: str
    who: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """How a subscription stands. ``kind`` without ``holder``: it was held, and its holder has vanished."""

    stream: str
    name: str
    watermark: int
    fence: int
    kind: str | None = None
    holder: Holder | None = None
    held_at: float | None = None
    marked_at: float | None = None


class SubscriptionStore:
    """The subscriptions of one database's streams; all methods wait for MongoDB."""

    def __init__(self, database: Documents) -> None:
        self._subscriptions = durable(database)["subscriptions"].with_options(
            read_concern=ReadConcern("majority")
        )

    def get(self, stream: str, name: str) -> Subscription | None:
        """One, if there is one."""
        with translated():
            found = self._subscriptions.find_one({"_id": _id(stream, name)})
        return _subscription(found) if found else None

    def of(self, stream: str | None = None) -> list[Subscription]:
        """All, or those of one stream, by name."""
        query = {} if stream is None else {"stream": stream}
        with translated():
            return [_subscription(each) for each in self._subscriptions.find(query).sort("_id", 1)]

    def count(self) -> int:
        """About how many there are in this database."""
        with translated():
            return self._subscriptions.estimated_document_count()

    def hold(
        self,
        stream: str,
        name: str,
        kind: str,
        holder: Holder,
        now: float,
        *,
        lost: Callable[[Holder], bool],
        after: int | None = None,
        born: int = 0,
        may_make: Callable[[], None] = lambda: None,
    ) -> Subscription:
        """Hold it, if it is free, or of this kind with a holder that is lost; made where it is missing.

        ``after``: the watermark of a hold that takes over from nobody; None: as it stands. ``born``: the
        watermark of one that is made now. ``lost``: whether a holder is gone; ``may_make`` raises
        what forbids a new one. Returns how it stands then:
        held by this ``holder``, or by whom it is held.

        Crash or lost reply: it is held by one who is gone, and whoever is of the kind takes over.
        """
        for _ in range(_TRIES):
            found = self.get(stream, name) or self._made(stream, name, born, may_make)
            if found.holder is not None and found.holder.token == holder.token:
                return found
            if found.kind is not None and (
                found.kind != kind or (found.holder is not None and not lost(found.holder))
            ):
                return found
            change: Document = {"kind": kind, "holder": _document(holder), "held_at": date(now)}
            if found.kind is None and after is not None:
                change["watermark"] = Int64(after)
            self._change(found, {"$set": change, "$inc": {"fence": 1}})
        raise Unavailable(f"subscription {name!r} of stream {stream!r} changes hands too fast: ask again")

    def mark(self, stream: str, name: str, fence: int, watermark: int, now: float) -> bool:
        """All up to there is worked on, in the hold with this fence; it never falls.

        False: another hold has begun since, or this one was given up. Lost reply: repeat it.
        """
        with translated():
            return self._mark(_id(stream, name), fence, watermark, now)

    def mark_within(self, session: ClientSession, held: Subscription, watermark: int, now: float) -> bool:
        """The same as a part of a transaction; raises the driver's errors."""
        return self._mark(_id(held.stream, held.name), held.fence, watermark, now, session)

    def vanish(self, stream: str, name: str, fence: int) -> None:
        """The holder's connection has ended: whoever is of its kind may take over."""
        with translated():
            self._subscriptions.update_one(
                {"_id": _id(stream, name), "fence": fence}, {"$unset": {"holder": True}}
            )

    def release(self, stream: str, name: str, fence: int | None = None) -> bool:
        """Give the lock up: in the hold with this fence, or whoever has it. False: there was none."""
        held: Document = {"_id": _id(stream, name), "kind": {"$exists": True}}
        if fence is not None:
            held["fence"] = fence
        free = {"$unset": {"kind": True, "holder": True, "held_at": True}, "$inc": {"fence": 1}}
        with translated():
            return self._subscriptions.update_one(held, free).matched_count == 1

    def seek(
        self, stream: str, name: str, watermark: int, may_make: Callable[[], None] = lambda: None
    ) -> Subscription:
        """Set the watermark of one that nobody holds; made where it is missing. Returns how it stands."""
        for _ in range(_TRIES):
            found = self.get(stream, name) or self._made(stream, name, watermark, may_make)
            if found.kind is not None or found.watermark == watermark:
                return found
            self._change(found, {"$set": {"watermark": Int64(watermark)}, "$inc": {"fence": 1}})
        raise Unavailable(f"subscription {name!r} of stream {stream!r} changes hands too fast: ask again")

    def delete(self, stream: str, name: str) -> bool:
        """Remove one that nobody holds; False: somebody does, or there is none."""
        free = {"_id": _id(stream, name), "kind": {"$exists": False}}
        with translated():
            return self._subscriptions.delete_one(free).deleted_count == 1

    def _mark(
        self, key: str, fence: int, watermark: int, now: float, session: ClientSession | None = None
    ) -> bool:
        current = {"_id": key, "fence": fence, "kind": {"$exists": True}}
        reached = {"$max": {"watermark": Int64(watermark)}, "$set": {"marked_at": date(now)}}
        return self._subscriptions.update_one(current, reached, session=session).matched_count == 1

    def _made(self, stream: str, name: str, watermark: int, may_make: Callable[[], None]) -> Subscription:
        may_make()
        born = {"stream": stream, "name": name, "watermark": Int64(watermark), "fence": Int64(0)}
        with translated(), suppress(DuplicateKeyError):  # another broker makes it just now
            self._subscriptions.update_one({"_id": _id(stream, name)}, {"$setOnInsert": born}, upsert=True)
        return self.get(stream, name) or Subscription(stream, name, watermark, 0)

    def _change(self, found: Subscription, change: Document) -> None:
        """Change it if no hold has begun or ended since it was found; the next look tells."""
        with translated():
            self._subscriptions.update_one(
                {"_id": _id(found.stream, found.name), "fence": found.fence}, change
            )


def _id(stream: str, name: str) -> str:
    return f"{stream}/{name}"  # no stream has a stroke in its name


def _document(holder: Holder) -> Document:
    return {"owner": holder.owner, "token": holder.token, "who": holder.who}


def _subscription(stored: Document) -> Subscription:
    holder = stored.get("holder")
    held_at, marked_at = stored.get("held_at"), stored.get("marked_at")
    return Subscription(
        stored["stream"],
        stored["name"],
        int(stored["watermark"]),
        int(stored["fence"]),
        stored.get("kind"),
        None if holder is None else Holder(holder["owner"], holder["token"], holder["who"]),
        None if held_at is None else seconds(held_at),
        None if marked_at is None else seconds(marked_at),
    )
