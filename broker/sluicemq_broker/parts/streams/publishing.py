"""The verb PUBLISH: messages of sessions, which are not read while a stream has too many on their way."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadFramesError,
    BadTopicError,
    SluiceError,
    TooLargeError,
    UnavailableError,
)
from sluicemq.protocol.packed import LONGEST_TOPIC
from sluicemq.protocol.rules import IDENTIFIER, Rule, whole
from sluicemq_broker.doors import Fields, Session, take
from sluicemq_broker.runtime import IS_TRUE, Count, Counters, read_options
from sluicemq_broker.security import charge
from sluicemq_broker.streams import Batch, BatchNumber, Expected, StoredNumbers, Stream, Streams, read_batch
from sluicemq_devices.hub import Fillers, Watermark


class Publishing:
    """All messages of sessions on their way to MongoDB, bounded by ``mark``, each stream by its share."""

    def __init__(self, streams: Streams, counters: Counters, mark: Watermark, most_bytes: int) -> None:
        self._streams = streams
        self._counters = counters
        # Bytes that a batch may have beside one message of the largest size: framing and a topic.
        self._most_bytes = max(most_bytes + 4096, 1 << 20)  # A batch with fewer bytes is never too large
        self._fillers: Fillers[Stream] = Fillers(mark)

    def publish(self, session: Session, number: int, fields: Fields) -> None:
        """Answer a PUBLISH once its messages are durable; raises what refuses them."""
        name, packed, options = take(fields, str, bytes, dict)
        if not session.door.accepting:
            raise UnavailableError("the broker stops: publish again when it is back")
        if len(packed) > self._most_bytes:
            raise TooLargeError(f"a PUBLISH of {len(packed)} bytes, this broker takes {self._most_bytes}")
        stream = self._streams.for_publish(name, caller=session.caller, peer=session.caller.maker)
        messages = read_batch(packed, lambda _outcome: None)
        if not 1 <= messages.count <= wire.MOST_PUBLISHED:
            raise BadFramesError(f"a PUBLISH has 1 to {wire.MOST_PUBLISHED} messages, not {messages.count}")
        _apply(options, messages, session.client)
        # Without the batch itself: a cycle would keep its bytes until the next collection.
        messages.done = partial(self._answer, session, number, stream, messages.count, len(packed))
        self._fillers.take(stream, session.lane, messages.count, len(packed))
        stream.publish(messages)
        charge(session.lane, messages.count, len(packed), self._counters)

    def _answer(
        self,
        session: Session,
        number: int,
        stream: Stream,
        count: int,
        size: int,
        outcome: StoredNumbers | SluiceError,
    ) -> None:
        if isinstance(outcome, StoredNumbers):
            there = [[list(item) for item in sorted(outcome.there.items())]] if outcome.there else []
            session.send(wire.OK, number, outcome.first, *there)
        else:
            self._counters.add(Count.of(outcome))
            session.answer(number, outcome)
        self._fillers.give(stream, session.lane, count, size)


def _apply(given: dict[Any, Any], messages: Batch, client: str) -> None:
    """Apply the options of a PUBLISH of a ``client`` that numbers its batches, or of ""; raises BadFrames."""
    if not given:
        return
    options = read_options(given, _OPTIONS, "a PUBLISH")
    if "id" in options:
        messages.key = "#" + options["id"]
        messages.repeated = options.get("again", False)
        if client and options["id"].startswith(f"{client}/"):
            messages.numbered = BatchNumber.read(messages.key)
    for place, own in options.get("ids", ()):
        key = "=" + own  # never an id of a batch, which begins with another sign
        if place >= messages.count or key in messages.ids:
            raise BadFramesError("ids of a PUBLISH name each message once at most")
        messages.ids[key] = place
    if "last" in options:
        messages.expected = Expected(options["last"], options.get("topic"))


def _read_ids(value: Any) -> list[tuple[int, str]]:
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        read_place = whole(0)
        return [(read_place(place), IDENTIFIER(own)) for place, own in value]
    raise ValueError(_IDS)


def _read_topic(value: Any) -> bytes:
    if isinstance(value, bytes) and len(value) <= LONGEST_TOPIC:
        return value
    raise BadTopicError(f"a topic of which something is expected has up to {LONGEST_TOPIC} bytes, as bin")


_IDS: Final = "[[place, id], ...], places from 0 on, none twice"
_OPTIONS: Final = {
    "id": IDENTIFIER,
    "again": IS_TRUE,
    "ids": Rule(_IDS, _read_ids),
    "last": whole(0, wire.MAX_NUMBER, "the number of a message, or 0"),
    "topic": Rule("a topic", _read_topic),
}
