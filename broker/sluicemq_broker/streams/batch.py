"""Batches of messages on their way into a stream, stored together or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.packed import slices, survey
from sluicemq_broker.streams.publishers import BatchNumber


class StoredNumbers(NamedTuple):
    """The numbers of a stored batch: ``first`` is that of the first message stored now, the others follow.

    ``there``: numbers of messages that were in the stream before, under their id, by place in the batch.
    """

    first: int
    there: Mapping[int, int] = {}


class Expected(NamedTuple):
    """A condition for storing: the stream, or this topic in it, ends with message ``last``; 0: has none."""

    last: int
    topic: bytes | None = None


#: Called once with the outcome of a batch.
Done = Callable[[StoredNumbers | SluiceError], object]


@dataclass(slots=True, eq=False)
class Batch:
    """Messages in order, made by :func:`read_batch`; ``done`` is called when they are durable or refused.

    ``key``: the batch's id, so that repetitions are stored once; ``repeated``: it may have come before, here
    or at another broker; ``numbered``: its publisher and number, if the key says them. ``ids``: places of
    messages with an id of their own. ``frames``: how many frames messages with three or more have behind the
    first. ``numbers``: those that the stream has given to the batch and its messages, by their ids, as far as
    is known.
    """

    packed: bytes
    ends: list[int]
    topics: list[bytes]
    frames: int
    done: Done
    key: str = ""
    repeated: bool = False
    numbered: BatchNumber | None = None
    ids: dict[str, int] = field(default_factory=dict)
    expected: Expected | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    settled: bool = False

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.ends)

    def new_part(self, there: Mapping[int, int]) -> tuple[bytes, list[bytes]]:
        """Return the messages other than those that are there, packed, and their topics."""
        if not there:
            return self.packed, self.topics
        messages = slices(self.packed, self.ends)
        left = [at for at in range(len(messages)) if at not in there]
        return b"".join([messages[at] for at in left]), [self.topics[at] for at in left]

    def there(self, beside: Mapping[str, int]) -> dict[int, int]:
        """Return the numbers of its messages that are in the stream, by place; ``beside``: more numbers.

        Of a batch that was stored before, those whose own id was there already have the number of that one;
        the others were numbered one after the other.
        """
        numbers = {**self.numbers, **beside} if beside else self.numbers
        if not numbers:
            return {}
        there = {
            place: numbers[message_id] for message_id, place in self.ids.items() if message_id in numbers
        }
        first = numbers.get(self.key)
        if first is None:
            return there
        before = {place: number for place, number in there.items() if number < first}
        stored = (place for place in range(self.count) if place not in before)
        return before | dict(zip(stored, itertools.count(first), strict=False))


def read_batch(packed: bytes, done: Done) -> Batch:
    """Return the batch of packed messages (``sluicemq.protocol.packed``); raises BadFrames."""
    return Batch(packed, *survey(packed), done)
