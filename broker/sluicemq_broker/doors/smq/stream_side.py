"""What the library's door has of streams, for all sessions together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.doors.smq.fields import Fields
from sluicemq_broker.doors.smq.publishing import Publisher, Publishing
from sluicemq_broker.doors.smq.reading import Answered, ReadBounds, Reads
from sluicemq_broker.doors.smq.stream_admin import StreamAdmin
from sluicemq_broker.doors.smq.subscriptions import Holds
from sluicemq_broker.runtime import Counters
from sluicemq_broker.streams import Stream, Streams, Subscriptions
from sluicemq_devices.hub import Watermark, nothing
from sluicemq_devices.sockets import Lane

#: The administrative verbs of streams: which method answers, and the types of the fields that it takes.
STREAM_QUESTIONS: Final[dict[bytes, tuple[Any, ...]]] = {
    wire.STREAMS: (StreamAdmin.list,),
    wire.STREAM: (StreamAdmin.show, str),
    wire.TRIM: (StreamAdmin.trim, str, int),
    wire.ERASE: (StreamAdmin.erase, str),
}

#: Those that change nothing.
STREAM_LOOKS: Final[frozenset[Callable[..., Any]]] = frozenset((StreamAdmin.list, StreamAdmin.show))
#: Times ``hwm`` messages are on their way at most: they come and go by the thousand.
_MESSAGES: Final = 10


class StreamSide:
    """Who publishes, who reads, who asks."""

    def __init__(
        self, settings: BrokerSettings, streams: Streams, subscriptions: Subscriptions, counters: Counters
    ) -> None:
        mark = Watermark(_MESSAGES * settings.hwm, settings.hwm_bytes, nothing, nothing)
        self._publishing = Publishing(streams, counters, mark, settings.max_job_bytes)
        self.admin = StreamAdmin(streams)
        self._streams = streams
        self._subscriptions = subscriptions
        self._read_bounds = ReadBounds()

    def __iter__(self) -> Iterator[Stream]:
        """The streams that are known here."""
        return iter(self._streams)

    def publish(self, publisher: Publisher, number: int, fields: Fields) -> None:
        """Answer a PUBLISH once its messages are durable; raises what refuses them."""
        self._publishing.publish(publisher, number, fields)

    def refuse_all(self) -> None:
        """The broker stops: take no messages any more."""
        self._publishing.refuse_all()

    def holds(self, who: Callable[[], str], peer: str) -> Holds:
        """Return the holds of one session; ``who()``: its name for people, ``peer``: its connection."""
        return Holds(self._subscriptions, who, peer)

    def subscriptions(self) -> list[dict[str, Any]]:
        """All subscriptions, and how far behind each is."""
        return self._subscriptions.listed()

    def reads(self, lane: Lane, answered: Answered) -> Reads:
        """What one session reads."""
        return Reads(self._streams, self._read_bounds, lane, answered)
