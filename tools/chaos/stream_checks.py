"""Checks of the stream: no hole, nothing twice, equal for all readers, and all of it worked through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from chaos import books, features
from chaos.breach import Breach
from chaos.ledger import Ledger

_SHOWN: Final = 20


class Stored(NamedTuple):
    """A message as it is in the stream at the end."""

    sequence: int
    topic: str
    payload: str


def stream_checks(ledger: Ledger, streams: Mapping[str, Sequence[Stored]]) -> Iterator[Breach]:
    """Yield the breaches between the streams at the end, by their names, and the books."""
    for name, messages in streams.items():
        yield from numbers(name, messages)
        yield from published(ledger, name, messages)
    stream = streams[features.STREAM]
    yield from read(ledger, stream)
    yield from worked(ledger, stream)
    yield from routed(ledger, stream)


def numbers(name: str, stream: Sequence[Stored]) -> Iterator[Breach]:
    """Yield holes in a stream, and messages that are in it twice."""
    found = [message.sequence for message in stream]
    if found != [*range(1, len(found) + 1)]:
        holes = sorted({*range(1, max(found) + 1)} - {*found})
        yield Breach("stream", f"{name} has holes, or is out of order: {holes[:_SHOWN]}")
    places: dict[str, list[int]] = defaultdict(list)
    for message in stream:
        places[message.payload].append(message.sequence)
    for payload, at in places.items():
        if len(at) > 1:
            yield Breach("stream", f"{payload} is in {name} more than once: at {at}")


def published(ledger: Ledger, name: str, stream: Sequence[Stored]) -> Iterator[Breach]:
    """Yield messages that were confirmed and are not there, and those that nobody has published."""
    by_number = {message.sequence: message.payload for message in stream}
    ids = set()
    for fact in ledger.facts:
        if fact.queue != name:
            continue
        if fact.what == books.PUBLISHED:
            ids.add(fact.id)
        elif fact.what == books.STORED and by_number.get(fact.about["sequence"]) != fact.id:
            there = by_number.get(fact.about["sequence"])
            text = f"{fact.id} was stored as {fact.about['sequence']}, where now is {there}"
            yield Breach("stream", text, ledger.story((fact.queue, fact.id)))
    for message in stream:
        if message.payload not in ids:
            yield Breach(
                "unexpected", f"nobody has published {message.payload}, {message.sequence} of {name}"
            )


def read(ledger: Ledger, stream: Sequence[Stored]) -> Iterator[Breach]:
    """Yield where a reader has missed a message, or read another one than is in the stream."""
    by_number = {message.sequence: message.payload for message in stream}
    position: dict[str, int] = {}
    for fact in ledger.facts:
        if fact.what == books.READ:
            number = fact.about["sequence"]
            if number != position.get(fact.program, 0) + 1:
                text = f"{fact.program} read message {number} after {position.get(fact.program, 0)}"
                yield Breach("stream", text, [str(fact)])
            if by_number.get(number) != fact.id:
                text = f"{fact.program} read {fact.id} as {number}, where now is {by_number.get(number)}"
                yield Breach("stream", text, [str(fact)])
            position[fact.program] = number
    for program, last in position.items():
        if last != len(stream):
            yield Breach("stream", f"{program} has read up to {last} of {len(stream)} messages")


def worked(ledger: Ledger, stream: Sequence[Stored]) -> Iterator[Breach]:
    """Yield holes between the batches of the subscription, and work of a former holder after a new one's."""
    last, fence = 0, 0
    for fact in ledger.facts:
        if fact.what != books.BATCH:
            continue
        if fact.about["first"] > last + 1:
            text = f"the subscription was given {fact.about['first']} after {last}"
            yield Breach("stream", text, [str(fact)])
        last, fence = max(last, fact.about["last"]), max(fence, fact.about["fence"])
    if last != len(stream):
        yield Breach("stream", f"the subscription was given {last} of {len(stream)} messages")


def routed(ledger: Ledger, stream: Sequence[Stored]) -> Iterator[Breach]:
    """Yield messages that became no job, and jobs of messages that should become none."""
    expected = {
        f"{features.STREAM}-{message.sequence}"
        for message in stream
        if message.topic == features.ROUTED_TOPIC
    }
    done = {
        id_
        for queue, id_ in ledger.runs
        if queue == features.ROUTED and ledger.first_end((queue, id_), books.COMMIT)
    }
    for id_ in sorted(expected - done):
        yield Breach(
            "lost", f"message {id_} was not worked on as a job", ledger.story((features.ROUTED, id_))
        )
    for id_ in sorted({id_ for queue, id_ in ledger.runs if queue == features.ROUTED} - expected):
        yield Breach("unexpected", f"job {id_} is of no message", ledger.story((features.ROUTED, id_)))
