"""Subscriptions in MongoDB: how far a name has read its stream, and who may go on.

One document each, in the collection ``subscriptions`` of the stream's database::

    {_id: "prices/sums", stream, name, watermark: 1200, fence: 7,
     kind?: "update", holder?: {owner, token, who}, held_at?, marked_at?, used_at?}

``watermark``: the number of the last message that was worked on. ``kind`` is the lock: it is there while the
subscription is held, or was held and its holder ended without giving it back. In the second case ``holder``
is missing, or its ``owner`` (a broker) has no live lease any more: then a session of that kind may take over,
and no other. ``fence`` rises whenever the lock changes hands or is given up, and begins at the milliseconds
of the server's clock. So it names one hold for ever, also of a subscription that was forgotten and made
again: a watermark is stored only under the fence of its own hold.

Every change is one statement on one document, guarded by the fence that was read before. Repeating any of
them after a lost reply is harmless: ``token`` tells who holds, and a statement with an old fence changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bson.int64 import Int64
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import (
    ASIDE,
    COUNT,
    DATE,
    MAP,
    TEXT,
    Damaged,
    Unreadable,
    field,
    read_one,
    read_or_damaged,
    readable,
)
from sluicemq_broker.store.values import Document, date

#: Subscriptions in one database, at most.
MOST_SUBSCRIPTIONS: Final = 10_000
#: How often others may change a subscription between reading and holding it.
_TRIES: Final = 20
#: The part of an update that says when a subscription was made, or released.
_USED: Final[Document] = {"$currentDate": {"used_at": True}}


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds: the broker's owner id, a token of that broker, and ``who`` for people."""

    owner: str
    token: str
    who: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """The state of a subscription. ``kind`` without ``holder``: its holder has vanished."""

    stream: str
    name: str
    watermark: int
    fence: int
    kind: str | None = None
    holder: Holder | None = None
    held_at: float | None = None
    marked_at: float | None = None
    used_at: float | None = None

    @property
    def last_used(self) -> float:
        """When it was made, held, marked or released last, in Unix seconds; 0: older versions don't say."""
        return max(self.used_at or 0.0, self.held_at or 0.0, self.marked_at or 0.0)


class SubscriptionStore:
    """The subscriptions of one database's streams; all methods wait for MongoDB."""

    def __init__(self, database: Documents) -> None:
        self._subscriptions = durable(database)["subscriptions"].with_options(
            read_concern=ReadConcern("majority")
        )

    def get(self, stream: str, name: str) -> Subscription | None:
        """Return a subscription, if there is one; raises :class:`SetAside` if it can't be read."""
        with translated():
            found = self._subscriptions.find_one({"_id": _id(stream, name)})
        return read_one(self._subscriptions, found, read_subscription) if found else None

    def of(self, stream: str | None = None) -> list[Subscription]:
        """Return all subscriptions, or those of one stream, by name."""
        query = {} if stream is None else {"stream": stream}
        with translated():
            found = self._subscriptions.find(query).sort("_id", 1)
            return list(readable(self._subscriptions, found, read_subscription))

    def of_stream(self, stream: str) -> tuple[list[Subscription], bool]:
        """Return the subscriptions of a stream, and True if there is one that can't be read.

        Nobody knows what that has read, so retention must keep all for it.
        """
        found: list[Subscription] = []
        damaged = False
        begins = {"_id": {"$gte": f"{stream}/", "$lt": f"{stream}0"}}  # a stroke, and what follows it
        with translated():
            for document in self._subscriptions.find(begins):
                one = read_or_damaged(self._subscriptions, document, read_subscription)
                if isinstance(one, Damaged):
                    ASIDE.note(one)
                    damaged = True
                else:
                    found.append(one)
        return found, damaged

    def count(self) -> int:
        """Return about how many there are in this database."""
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
        is_lost: Callable[[Holder], bool],
        after: int | None = None,
        initial: int = 0,
        may_make: Callable[[], None] = lambda: None,
        may_move: Callable[[Subscription], None] = lambda _found: None,
    ) -> Subscription:
        """Hold a subscription that is free, or of this kind with a lost holder; make it where it is missing.

        ``after``: the watermark of a hold that takes over from nobody; None: as it is. ``initial``: the
        watermark of a new subscription. ``is_lost`` says whether a holder is gone; ``may_make`` raises what
        forbids a new subscription, ``may_move`` what forbids that ``after`` moves the watermark of an older
        one as it was found; it moves if the hold has the next fence. Both are called in each try. Return its
        state then: held by this ``holder``, or by another.

        Crash or lost reply: it is held by a session that is gone, and another of its kind takes over.
        """
        begins = initial if after is None else after
        for _ in range(_TRIES):
            found = self.get(stream, name) or self._made(stream, name, begins, may_make)
            if found.holder is not None and found.holder.token == holder.token:
                return found
            if found.kind is not None and (
                found.kind != kind or (found.holder is not None and not is_lost(found.holder))
            ):
                return found
            change: Document = {"kind": kind, "holder": _document(holder), "held_at": date(now)}
            if found.kind is None and after is not None and after != found.watermark:
                may_move(found)
                change["watermark"] = Int64(after)
            # failpoint subscriptions.hold
            self._change(found, {"$set": change, "$inc": {"fence": 1}})
        raise UnavailableError(
            f"subscription {name!r} of stream {stream!r} changes hands too fast: ask again"
        )

    def mark(self, stream: str, name: str, fence: int, watermark: int, now: float) -> bool:
        """Note that all messages up to there are worked on, in the hold with this fence; it never falls.

        False: another hold has begun since, or this one was given up. Lost reply: repeat it.
        """
        with translated():
            # failpoint subscriptions.mark
            return self._mark(_id(stream, name), fence, watermark, now)

    def mark_within(self, session: ClientSession, held: Subscription, watermark: int, now: float) -> bool:
        """Mark as a part of a transaction; raises the driver's errors."""
        # failpoint routes.mark
        return self._mark(_id(held.stream, held.name), held.fence, watermark, now, session)

    def vanish(self, stream: str, name: str, fence: int) -> None:
        """Note that the holder's connection has ended: another session of its kind may take over."""
        with translated():
            # failpoint subscriptions.vanish
            self._subscriptions.update_one(
                {"_id": _id(stream, name), "fence": fence}, {"$unset": {"holder": True}}
            )

    def release(self, stream: str, name: str, fence: int | None = None) -> bool:
        """Give the lock up, of the hold with this fence or of any; False: there was none."""
        held: Document = {"_id": _id(stream, name), "kind": {"$exists": True}}
        if fence is not None:
            held["fence"] = fence
        free: Document = {"$unset": {"kind": True, "holder": True, "held_at": True}, "$inc": {"fence": 1}}
        with translated():
            # failpoint subscriptions.release
            return self._subscriptions.update_one(held, {**free, **_USED}).matched_count == 1

    def seek(
        self, stream: str, name: str, watermark: int, may_make: Callable[[], None] = lambda: None
    ) -> Subscription:
        """Set the watermark of a free subscription; make it where it is missing. Return its state."""
        for _ in range(_TRIES):
            found = self.get(stream, name) or self._made(stream, name, watermark, may_make)
            if found.kind is not None or found.watermark == watermark:
                return found
            # failpoint subscriptions.seek
            self._change(found, {"$set": {"watermark": Int64(watermark)}, "$inc": {"fence": 1}})
        raise UnavailableError(
            f"subscription {name!r} of stream {stream!r} changes hands too fast: ask again"
        )

    def delete(self, stream: str, name: str) -> bool:
        """Remove a free subscription; False: it is held, or there is none."""
        free = {"_id": _id(stream, name), "kind": {"$exists": False}}
        with translated():
            # failpoint subscriptions.forget
            return self._subscriptions.delete_one(free).deleted_count == 1

    def _mark(
        self, key: str, fence: int, watermark: int, now: float, session: ClientSession | None = None
    ) -> bool:
        current = {"_id": key, "fence": fence, "kind": {"$exists": True}}
        reached = {"$max": {"watermark": Int64(watermark)}, "$set": {"marked_at": date(now)}}
        # failpoint *
        return self._subscriptions.update_one(current, reached, session=session).matched_count == 1

    def _made(self, stream: str, name: str, watermark: int, may_make: Callable[[], None]) -> Subscription:
        may_make()
        new: Document = {
            "stream": {"$literal": stream},
            "name": {"$literal": name},
            "watermark": Int64(watermark),
            "fence": {"$toLong": "$$NOW"},
        }
        made = {field: {"$ifNull": [f"${field}", value]} for field, value in new.items()}
        with translated(), suppress(DuplicateKeyError):  # another broker makes it just now
            # failpoint subscriptions.make
            self._subscriptions.update_one(
                {"_id": _id(stream, name)}, [{"$set": {**made, "used_at": "$$NOW"}}], upsert=True
            )
        return self.get(stream, name) or Subscription(stream, name, watermark, 0)

    def _change(self, found: Subscription, change: Document) -> None:
        """Change it unless a hold has begun or ended since it was found; the next read tells."""
        with translated():
            # failpoint *
            self._subscriptions.update_one(
                {"_id": _id(found.stream, found.name), "fence": found.fence}, change
            )


def _id(stream: str, name: str) -> str:
    return f"{stream}/{name}"  # no stream has a stroke in its name


def _document(holder: Holder) -> Document:
    return {"owner": holder.owner, "token": holder.token, "who": holder.who}


def read_subscription(stored: Document) -> Subscription:
    """Read a subscription."""
    stream, name = field(stored, "stream", TEXT), field(stored, "name", TEXT)
    if field(stored, "_id", TEXT) != _id(stream, name):
        raise Unreadable("its _id is not stream/name")
    holder = field(stored, "holder", MAP, None)
    return Subscription(
        stream,
        name,
        field(stored, "watermark", COUNT),
        field(stored, "fence", COUNT),
        field(stored, "kind", TEXT, None),
        None if holder is None else Holder(*(field(holder, slot, TEXT) for slot in Holder.__slots__)),
        field(stored, "held_at", DATE, None),
        field(stored, "marked_at", DATE, None),
        field(stored, "used_at", DATE, None),
    )
