"""Events between brokers: where to look in MongoDB, or what is there.

A missed event costs time and never a job: brokers poll as well. An event too many costs one look.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self


class BusKind(StrEnum):
    """Subjects of events, with the meaning of their name and number."""

    READY = "ready"
    """Jobs of queue ``name`` are ready; none of them was accepted after ``number`` (see ``Job.seq``)."""
    COMING = "coming"
    """Jobs of queue ``name`` are being inserted: a claim may find them while the insert waits for its
    majority. The claim stands behind the insert in MongoDB's log, so its own majority covers both."""
    ENDED = "ended"
    """Jobs of queue ``name`` have ended whose results are wanted at another broker."""
    CANCELLED = "cancelled"
    """Jobs of queue ``name`` were cancelled, perhaps at workers of another broker."""
    FREED = "freed"
    """Jobs of queue ``name`` that its limits held back may begin: others have ended, or permits are idle."""
    RECORDS = "queues"
    """Queues were paused, resumed, removed, or got settings."""
    STREAM = "stream"
    """Stream ``name`` has a segment that begins with message ``number``."""
    SEGMENT = "segment"
    """Stream ``name`` has the segment in ``data``; sent before the ``STREAM`` event about it."""
    PRINCIPALS = "principals"
    """Principals were added, changed or removed."""
    LOGINS = "logins"
    """Logins of browsers were ended, or a new secret signs them."""
    CLIENT = "client"
    """Client ``name`` has come over its connection ``number``: what it sent over older ones is repeated."""
    HELLO = "hello"
    """A broker begins to listen."""

    @property
    def window(self) -> float:
        """Seconds in which one event about a queue or stream is sent; a second one follows at their end."""
        # Seconds between two events of one kind about one queue.
        # Seconds between two events about one stream, whose readers want each segment: one or two inserts.
        return 0.005 if self is BusKind.STREAM else 0.05


class BusEvent(NamedTuple):
    """One event. An empty name means all queues or streams: events of this kind may have been missed.

    ``data``: a segment as text; empty: receivers read it in MongoDB.
    """

    kind: BusKind
    name: str = ""
    number: int = 0
    data: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The event as it is sent; a broker that does not know ``SEGMENT`` ignores that line."""
        carried = f"{BusKind.SEGMENT} {self.name} {self.number} {self.data}"
        return (carried, str(self)) if self.data else (str(self),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.number}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the event of a line; None if this version does not know its kind."""
        try:
            kind, name, number, *data = text.split(" ", 3)
            return cls(BusKind(kind), name, int(number), *data)
        except ValueError:
            return None
