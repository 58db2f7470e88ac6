"""How far publishers have come in the streams of this broker, so that few of their batches are looked up.

A publisher numbers its batches and sends those of a stream in that order, over one connection at a time. It
sends what was not answered again over its next connection, marked as sent again. So its batch
``NAME/000000000012`` is

- new, if its number is above all that the stream had of this publisher when the tail was read;
- too late, if it is not marked and the stream has a higher one: the publisher has gone on over a later
  connection, and has sent this one again there or has heard why it was refused.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from sluicemq_devices.hub import Latest

_DIGITS: Final = 12


class BatchNumber(NamedTuple):
    """The number that a publisher has given to a batch."""

    publisher: str
    number: int

    @classmethod
    def read(cls, batch_id: str) -> BatchNumber | None:
        """Return what the id of a batch says; None: it is of another form."""
        name, number = batch_id[: -_DIGITS - 1], batch_id[-_DIGITS:]
        if name and batch_id[-_DIGITS - 1] == "/" and number.isascii() and number.isdigit():
            return cls(name, int(number))
        return None

    @property
    def later_ids(self) -> tuple[str, str]:
        """Two ids between which, both excluded, are those of the publisher's later batches."""
        return f"{self.publisher}/{self.number:0{_DIGITS}}", f"{self.publisher}0"  # "0" follows "/"


class Publishers:
    """The publishers of all streams of a broker; those that published longest ago are forgotten."""

    def __init__(self, most: int = 20_000) -> None:
        self.numbers: Latest[tuple[int, str], int] = Latest(most)
        """By stream and publisher, 256 bytes each; batches of others are looked up in MongoDB."""
        self._streams = itertools.count()

    def of_stream(self) -> Progress:
        """Return what one stream knows of its publishers: nothing yet."""
        return Progress(self, next(self._streams))

    def reached(self, stream: int, publisher: str) -> int | None:
        """Return a number above which a stream has no batch of a publisher; None: it is not known."""
        return self.numbers.get((stream, publisher))

    def note(self, stream: int, batch: BatchNumber) -> None:
        """Note that a stream has, or may have, this batch, and none of its publisher's behind it."""
        key = stream, batch.publisher
        self.numbers[key] = max(batch.number, self.numbers.get(key, 0))


class Progress:
    """How far publishers have come in one stream, as of the tail that its writer knows."""

    def __init__(self, publishers: Publishers, stream: int) -> None:
        self._publishers = publishers
        self._stream = stream

    def is_new(self, batch: BatchNumber) -> bool:
        """Return True if the stream has neither this batch nor a later one of its publisher, surely."""
        reached = self._publishers.reached(self._stream, batch.publisher)
        return reached is not None and batch.number > reached

    def note(self, batch: BatchNumber) -> None:
        """Note that the stream has, or may have, this batch, and none of its publisher's behind it."""
        self._publishers.note(self._stream, batch)

    def pass_by(self, batch: BatchNumber) -> None:
        """Note a batch that is stored, or being stored, if its publisher is known."""
        if self._publishers.reached(self._stream, batch.publisher) is not None:
            self.note(batch)
