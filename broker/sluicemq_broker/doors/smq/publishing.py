"""What sessions publish: batches on their way into streams, and who is not read while there are too many."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, BadTopic, SluiceError, TooLarge, Unavailable
from sluicemq.protocol.packed import LONGEST_TOPIC
from sluicemq.protocol.rules import LONGEST_ID
from sluicemq_broker.doors.smq.fields import Fields, error_fields, take
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.streams import Batch, Expected, Stored, Stream, Streams, read_batch
from sluicemq_devices.hub import Fillers, Watermark

#: Bytes that a batch may have beside one message of the largest size: framing and a topic.
_BESIDE: Final = 4096
#: With fewer than so many bytes a batch of small messages is never too large.
_SMALL: Final = 1 << 20


class Publisher(Protocol):
    """The session that publishes; ``peer``: its connection."""

    name: str
    peer: str

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message."""

    def wait_for(self, stream: Stream) -> None:
        """Read no more of it until :meth:`drained`."""

    def drained(self, stream: Stream) -> None:
        """A stream that it publishes to has room again."""


class Publishing:
    """All messages of the library on their way to MongoDB, bounded by ``mark``, each stream by its share."""

    def __init__(self, streams: Streams, counters: Counters, mark: Watermark, most_bytes: int) -> None:
        self._streams = streams
        self._counters = counters
        self._most_bytes = max(most_bytes + _BESIDE, _SMALL)
        self._taking = True
        self._on_their_way: Fillers[Stream, Publisher] = Fillers(
            mark, lambda each, stream: each.wait_for(stream), lambda each, stream: each.drained(stream)
        )

    def refuse_all(self) -> None:
        """The broker stops: take none any more."""
        self._taking = False

    def publish(self, publisher: Publisher, number: int, fields: Fields) -> None:
        """Answer a PUBLISH once its messages are durable; raises what refuses them."""
        name, packed, options = take(fields, str, bytes, dict)
        if not self._taking:
            raise Unavailable("the broker stops: publish again when it is back")
        if len(packed) > self._most_bytes:
            raise TooLarge(f"a PUBLISH of {len(packed)} bytes, this broker takes {self._most_bytes}")
        stream = self._streams.for_publish(name, peer=publisher.peer)
        messages = read_batch(packed, lambda _outcome: None)
        if not 1 <= messages.count <= wire.MOST_PUBLISHED:
            raise BadFrames(f"a PUBLISH has 1 to {wire.MOST_PUBLISHED} messages, not {messages.count}")
        _apply(options, messages)
        # Without the batch, which has this: in a cycle it would keep its bytes until that is found.
        messages.done = partial(self._answer, publisher, number, stream, messages.count, len(packed))
        self._on_their_way.take(stream, publisher, messages.count, len(packed))
        stream.publish(messages)

    def _answer(
        self,
        publisher: Publisher,
        number: int,
        stream: Stream,
        count: int,
        size: int,
        outcome: Stored | SluiceError,
    ) -> None:
        if isinstance(outcome, Stored):
            there = [[list(each) for each in sorted(outcome.there.items())]] if outcome.there else []
            publisher.send(wire.OK, number, outcome.first, *there)
        else:
            self._counters.add(Count.of(outcome))
            publisher.send(wire.ERROR, number, *error_fields(outcome))
        self._on_their_way.give(stream, publisher, count, size)


def _apply(options: dict[Any, Any], messages: Batch) -> None:
    """Read the options of a PUBLISH; raises :class:`BadFrames`."""
    if not options:
        return
    unknown = options.keys() - {"id", "again", "ids", "last", "topic"}
    if unknown:
        raise BadFrames(f"a PUBLISH has no option {min(map(str, unknown))[:64]!r}")
    if "id" in options:
        messages.key = "#" + _id(options["id"])
        messages.repeated = options.get("again") is True
    for each in _list(options.get("ids", ())):
        match each:
            case [int() as place, str() as own] if (
                0 <= place < messages.count and "=" + own not in messages.ids
            ):
                messages.ids["=" + _id(own)] = place  # never an id of a batch, which begins with another sign
            case _:
                raise BadFrames("the ids of a PUBLISH are [[place, id], ...], places from 0 on, none twice")
    if "last" in options:
        messages.expected = _expected(options["last"], options.get("topic"))


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise BadFrames("the ids of a PUBLISH are an array")
    return value


def _id(value: Any) -> str:
    if isinstance(value, str) and 1 <= len(value.encode()) <= LONGEST_ID:
        return value
    raise BadFrames(f"an id is a string of 1 to {LONGEST_ID} bytes, not {str(value)[:64]!r}")


def _expected(last: Any, topic: Any) -> Expected:
    if not isinstance(last, int) or isinstance(last, bool) or not 0 <= last < 2**63:
        raise BadFrames(f"last is the number of a message, or 0, not {str(last)[:64]!r}")
    if topic is not None and not (isinstance(topic, bytes) and len(topic) <= LONGEST_TOPIC):
        raise BadTopic(f"a topic of which something is expected has up to {LONGEST_TOPIC} bytes, as bin")
    return Expected(last, topic)
