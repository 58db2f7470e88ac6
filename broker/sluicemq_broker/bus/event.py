"""What brokers tell each other: where to look again, or what is there; nothing that is not in MongoDB.

An event that is lost costs time, never a job: behind each stands a poll. One that comes too often, or was
sent by a broker of something else, costs a look.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Self

#: Seconds from one event of a kind about one thing to the next: what happens between is told at the end.
_WINDOW: Final = 0.05
#: The same of streams, whose readers want each segment: as long as the insert of one takes, or two.
_STREAM_WINDOW: Final = 0.005


class BusKind(StrEnum):
    """What an event is about; what its name and number are."""

    READY = "ready"
    """Jobs of queue ``name`` lie ready; ``number``: none of them was accepted later (see ``Job.seq``)."""
    COMING = "coming"
    """The same, told when they are on their way to MongoDB: whoever looks may find them while their insert
    waits for its majority. A claim has its own later in the same log, so it covers both."""
    ENDED = "ended"
    """Jobs of queue ``name`` have ended whose results are waited for at another broker."""
    FREED = "freed"
    """Jobs of queue ``name`` that its limits hold back may begin: some have ended, or permits are idle."""
    PAUSES = "queues"
    """What was ordered for queues, as a pause, has changed."""
    STREAM = "stream"
    """Stream ``name`` has a segment that begins with message ``number``."""
    SEGMENT = "segment"
    """The same, and all of it (``data``), before the event that says only that it is there."""
    HELLO = "hello"
    """A broker listens from now on."""

    @property
    def window(self) -> float:
        """Seconds in which only one event about the same thing is sent, and one at their end."""
        return _STREAM_WINDOW if self is BusKind.STREAM else _WINDOW


class BusEvent(NamedTuple):
    """One event. An empty name, at whoever hears it: of all of this kind, for some may have been missed.

    ``data``: of a segment, in words; empty: whoever wants it reads it in MongoDB.
    """

    kind: BusKind
    name: str = ""
    number: int = 0
    data: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """As it is told; brokers that know nothing of data pass over the line that has it."""
        carried = f"{BusKind.SEGMENT} {self.name} {self.number} {self.data}"
        return (carried, str(self)) if self.data else (str(self),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.number}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The event of such a line; None for one that this version does not know."""
        try:
            kind, name, number, *data = text.split(" ", 3)
            return cls(BusKind(kind), name, int(number), *data)
        except ValueError:
            return None
