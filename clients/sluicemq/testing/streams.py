"""Streams of a broker in memory: messages by their numbers, readers that wait, subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, ConflictError, HeldError, NotFoundError, SluiceError
from sluicemq.protocol.packed import scan, slices
from sluicemq_broker.doors import Fields, take
from sluicemq_broker.store import ServerClock
from sluicemq_broker.streams import NEWEST, Topics, check_stream, not_held

if TYPE_CHECKING:
    from sluicemq.testing.session import Session


class _Message(NamedTuple):
    number: int
    at: float
    topic: bytes
    packed: bytes


class _Subscription:
    """A subscription. ``kind`` is None while nobody holds it; ``holder`` is None once its session ended."""

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.fence = 0
        self.kind: str | None = None
        self.holder: Session | None = None
        self.held_at: float | None = None
        self.marked_at: float | None = None


class MemoryStream:
    """The messages of one stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[_Message] = []
        self.ids: dict[str, int] = {}
        """The numbers of batches and messages by their ids."""
        self.subscriptions: dict[str, _Subscription] = {}
        self.readers: dict[tuple[Session, int], Callable[[], None]] = {}
        """The READs that wait, by session and number."""

    @property
    def newest(self) -> int:
        """Return the number of the newest message."""
        return self.messages[-1].number if self.messages else 0

    def last_of(self, topic: bytes | None) -> int:
        """Return the number of the last message, or of the last with a topic."""
        if topic is None:
            return self.newest
        return max((message.number for message in self.messages if message.topic == topic), default=0)

    def row(self) -> dict[str, Any]:
        """Return what STREAM answers."""
        return {
            "name": self.name,
            "first": 1,
            "last": self.newest,
            "messages": len(self.messages),
            "bytes": sum(len(message.packed) for message in self.messages),
            "last_at": self.messages[-1].at if self.messages else None,
        }


class MemoryStreams:
    """All streams by name."""

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock
        self._known: dict[str, MemoryStream] = {}

    def leave(self, session: Session) -> None:
        """Forget what a session that has ended waits for, and let others of their kinds take its holds."""
        for stream in self._known.values():
            for key in [reader for reader in stream.readers if reader[0] is session]:
                del stream.readers[key]
            for held in stream.subscriptions.values():
                held.holder = None if held.holder is session else held.holder

    # ------------------------------------------------------------------ messages

    def publish(self, fields: Fields) -> list[Any]:
        """Store messages; return the number of the first, and those that were there."""
        name, packed, options = take(fields, str, bytes, dict)
        stream = self._known.setdefault(check_stream(name), MemoryStream(name))
        ends, topics = scan(packed)
        if not 1 <= len(ends) <= wire.MOST_PUBLISHED:
            raise BadFramesError(f"a PUBLISH has 1 to {wire.MOST_PUBLISHED} messages, not {len(ends)}")
        batch = options.get("id")
        if batch is not None and (first := stream.ids.get(f"#{batch}")):
            return [first]
        ids = {place: f"={own}" for place, own in options.get("ids", ())}
        there = {place: stream.ids[own] for place, own in ids.items() if own in stream.ids}
        last = stream.last_of(options.get("topic"))
        if options.get("last", last) != last and len(there) < len(ends):
            raise ConflictError(f"stream {name!r} ends with {last}: nothing was stored", last)
        first = stream.newest + 1
        for place, (topic, message) in enumerate(zip(topics, slices(packed, ends), strict=True)):
            if place not in there:
                number = stream.newest + 1
                stream.messages.append(_Message(number, self._clock.now(), topic, message))
                if place in ids:
                    stream.ids[ids[place]] = number
        if batch is not None:
            stream.ids[f"#{batch}"] = first
        for resume in list(stream.readers.values()):
            resume()
        return [first, [list(entry) for entry in sorted(there.items())]] if there else [first]

    def read(self, session: Session, number: int, fields: Fields) -> Any:
        """Answer a READ, now or when there are messages."""
        name, options = take(fields, str, dict)
        stream = self._of(name)
        after = stream.newest if options.get("new") else options.get("after", 0)
        if (since := options.get("since")) is not None:
            after = max([message.number for message in stream.messages if message.at < since], default=0)
        topics, most = Topics(options.get("topics", [])), options.get("most", wire.MOST_READ)
        answer = _page(stream, topics, most, after)
        wait = options.get("wait", 0.0)
        if answer["rows"] or wait <= 0:
            return answer

        def resume() -> None:
            found = _page(stream, topics, most, answer["after"])
            answer["after"], answer["newest"] = found["after"], found["newest"]
            if found["rows"]:
                del stream.readers[session, number]
                session.answer(number, found)

        def give_up() -> None:
            stream.readers.pop((session, number), None)
            session.send(wire.OK, number, answer)

        stream.readers[session, number] = resume
        return session.wait(number, wait, give_up)

    # ------------------------------------------------------------------ streams

    def all(self, _session: Session, _number: int, _fields: Fields) -> Any:
        """Return all streams."""
        return [self._known[name].row() for name in sorted(self._known)]

    def one(self, _session: Session, _number: int, fields: Fields) -> Any:
        """Return one stream."""
        return self._of(*take(fields, str)).row()

    def _of(self, name: str) -> MemoryStream:
        found = self._known.get(check_stream(name))
        if found is None:
            raise NotFoundError(f"there is no stream {name!r}")
        return found

    # ------------------------------------------------------------------ subscriptions

    def hold(self, session: Session, _number: int, fields: Fields) -> dict[str, int]:
        """Hold a subscription that is free, or of this kind with a holder that has gone."""
        name, of, kind, options = take(fields, str, str, str, dict)
        stream, after = self._of(name), options.get("after")
        after = stream.newest if after == NEWEST else after
        found = stream.subscriptions.get(of)
        if found is None:
            born = options.get("born", 0)
            found = _Subscription(stream.newest if born == NEWEST else born)
            found.watermark = found.watermark if after is None else after
            stream.subscriptions[of] = found
        elif found.kind is not None and (
            found.kind != kind or (found.holder is not None and found.holder is not session)
        ):
            raise _held(stream, of, found)
        elif found.kind is None and after is not None:
            found.watermark = after
        found.kind, found.holder, found.held_at = kind, session, self._clock.now()
        found.fence += 1
        return {"fence": found.fence, "watermark": found.watermark}

    def mark(self, session: Session, _number: int, fields: Fields) -> None:
        """Note that all messages up to a watermark are done."""
        name, of, fence, watermark = take(fields, str, str, int, int)
        found = self._own(session, name, of, fence)
        found.watermark, found.marked_at = max(found.watermark, watermark), self._clock.now()

    def free(self, session: Session, _number: int, fields: Fields) -> None:
        """Give a subscription up, or take it from any holder."""
        name, of = take(fields, str, str)
        fence = fields[2] if len(fields) > 2 else None
        found = self._subscription(name, of) if fence is None else self._own(session, name, of, fence)
        if found.kind is None:
            raise NotFoundError(f"subscription {of!r} of stream {name!r} is held by nobody")
        found.kind = found.holder = None
        found.fence += 1

    def listed(self, session: Session, _number: int, fields: Fields) -> Any:
        """Return all subscriptions, or those of one stream."""
        name = fields[0] if fields else None
        streams = self._known.values() if name is None else [self._of(name)]
        return [self._row(session, stream, of) for stream in streams for of in sorted(stream.subscriptions)]

    def _subscription(self, name: str, of: str) -> _Subscription:
        found = self._of(name).subscriptions.get(of)
        if found is None:
            raise NotFoundError(f"stream {name!r} has no subscription {of!r}")
        return found

    def _own(self, session: Session, name: str, of: str, fence: int) -> _Subscription:
        found = self._of(name).subscriptions.get(of)
        if found is None or found.holder is not session or found.fence != fence:
            raise not_held(name, of, fence)
        return found

    def _row(self, session: Session, stream: MemoryStream, of: str) -> dict[str, Any]:
        found = stream.subscriptions[of]
        ahead = [message for message in stream.messages if message.number > found.watermark]
        return {
            "stream": stream.name, "name": of, "watermark": found.watermark,
            "behind": max(0, stream.newest - found.watermark),
            "seconds_behind": self._clock.now() - ahead[0].at if ahead else 0.0,
            "kind": found.kind, "holder": found.holder.name if found.holder else None,
            "held_at": found.held_at, "marked_at": found.marked_at,
            "fence": found.fence if found.holder is session else None,
        }  # fmt: skip


def _page(stream: MemoryStream, topics: Topics, most: int, after: int) -> dict[str, Any]:
    ahead = [message for message in stream.messages if message.number > after]
    chosen = [message for message in ahead if topics.want(message.topic)]
    last = chosen[most - 1].number if len(chosen) > most else max(stream.newest, after)
    rows = [[message.number, message.at, message.packed, None] for message in chosen[:most]]
    return {"rows": rows, "after": last, "gone": None, "newest": stream.newest}


def _held(stream: MemoryStream, of: str, found: _Subscription) -> SluiceError:
    text = f"subscription {of!r} of stream {stream.name!r} is held for {found.kind!r}"
    return HeldError(text, found.kind or "")


#: The methods that answer the verbs of streams.
STREAM_VERBS: Final[dict[bytes, Callable[[MemoryStreams, Session, int, Fields], Any]]] = {
    wire.READ: MemoryStreams.read,
    wire.STREAMS: MemoryStreams.all,
    wire.STREAM: MemoryStreams.one,
    wire.HOLD: MemoryStreams.hold,
    wire.MARK: MemoryStreams.mark,
    wire.FREE: MemoryStreams.free,
    wire.SUBS: MemoryStreams.listed,
}
