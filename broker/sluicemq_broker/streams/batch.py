"""Messages on their way into a stream, that are stored together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.packed import slices, survey


class Stored(NamedTuple):
    """Where a batch is: ``first`` numbers those of its messages that were stored now, one after the other.

    ``there``: by their places in the batch, the numbers of those that were in the stream before, under
    the same id.
    """

    first: int
    there: Mapping[int, int] = {}


class Expected(NamedTuple):
    """Store it only if the stream, or this topic in it, ends with message ``last``; 0: has none."""

    last: int
    topic: bytes | None = None


#: Told once what became of a batch.
Done = Callable[[Stored | SluiceError], object]


@dataclass(slots=True, eq=False)
class Batch:
    """Some messages, in order, made by :func:`read_batch`; ``done`` hears when they are durable or refused.

    ``key``: of the batch, so that it is stored once however often it comes; ``repeated``: it may have
    come before, here or to another broker. ``ids``: places of messages that have an id of their own.
    ``frames``: those behind the first of messages that have three or more.
    """

    packed: bytes
    ends: list[int]
    topics: list[bytes]
    frames: int
    done: Done
    key: str = ""
    repeated: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    expected: Expected | None = None
    there: dict[int, int] = field(default_factory=dict)
    settled: bool = False

    @property
    def count(self) -> int:
        """Messages in it."""
        return len(self.ends)

    @property
    def new(self) -> int:
        """Messages in it that are not in the stream yet, as far as is known."""
        return len(self.ends) - len(self.there)

    def new_part(self) -> tuple[bytes, list[bytes]]:
        """Those messages, packed, and their topics."""
        if not self.there:
            return self.packed, self.topics
        each = slices(self.packed, self.ends)
        left = [at for at in range(len(each)) if at not in self.there]
        return b"".join([each[at] for at in left]), [self.topics[at] for at in left]

    def was_stored(self, first: int) -> None:
        """All of it is in the stream, from this number on, by an earlier copy of it."""
        self.there = {at: first + at for at in range(self.count)}


def read_batch(packed: bytes, done: Done) -> Batch:
    """Messages as ``packed`` has them; raises BadFrames for what is none."""
    return Batch(packed, *survey(packed), done)
