"""What the library's door has of streams, for all sessions together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.doors.smq.fields import Fields
from sluicemq_broker.doors.smq.publishing import Publisher, Publishing
from sluicemq_broker.doors.smq.reading import Answered, ReadBounds, Reads
from sluicemq_broker.doors.smq.subscriptions import Holds
from sluicemq_broker.runtime import Counters
from sluicemq_broker.streams import Streams, Subscriptions
from sluicemq_devices.hub import Watermark, nothing
from sluicemq_devices.sockets import Lane

#: Times ``hwm`` messages are on their way at most: they come and go by the thousand.
_MESSAGES: Final = 10


class SessionStreams:
    """Who publishes, who reads, who asks."""

    def __init__(
        self, settings: BrokerSettings, streams: Streams, subscriptions: Subscriptions, counters: Counters
    ) -> None:
        mark = Watermark(_MESSAGES * settings.hwm, settings.hwm_bytes, nothing, nothing)
        self._publishing = Publishing(streams, counters, mark, settings.max_job_bytes)
        self._streams = streams
        self._subscriptions = subscriptions
        self._read_bounds = ReadBounds()

    def publish(self, publisher: Publisher, number: int, fields: Fields) -> None:
        """Answer a PUBLISH once its messages are durable; raises what refuses them."""
        self._publishing.publish(publisher, number, fields)

    def refuse_all(self) -> None:
        """The broker stops: take no messages any more."""
        self._publishing.refuse_all()

    def holds(self, who: Callable[[], str], peer: str) -> Holds:
        """Return the holds of one session; ``who()``: its name for people, ``peer``: its connection."""
        return Holds(self._subscriptions, who, peer)

    def reads(self, lane: Lane, answered: Answered) -> Reads:
        """What one session reads."""
        return Reads(self._streams, self._read_bounds, lane, answered)
