"""All streams of this broker: found in MongoDB, made by their first message, kept within their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from sluicemq.protocol.errors import BadStreamError, QueueFullError, UnavailableError
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import StreamRow
from sluicemq_broker.bus import BusEvent, Channel, silent
from sluicemq_broker.config import Config
from sluicemq_broker.runtime import Count, Kept
from sluicemq_broker.security import Caller, authorize
from sluicemq_broker.store import Disk, Documents, StreamStore, stream_names
from sluicemq_broker.streams.carried import read_carried
from sluicemq_broker.streams.retention import Retention
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.stream import Stream

#: The share of its disk that a stream without a bound may have before that is an incident.
MUCH_OF_A_DISK: Final = 0.2


class Streams:
    """The streams by name.

    ``database(name)``: a database of MongoDB. ``channel(name)``: the events between brokers on a database.
    """

    def __init__(
        self,
        config: Config,
        context: StreamServices,
        database: Callable[[str], Documents],
        channel: Callable[[str], Channel] = lambda _database: silent(),
    ) -> None:
        self._config = config
        self._context = context
        self._database = database
        self._open: dict[str, Stream] = {}
        named = (device.stream for device in config.devices if device.stream)
        routed = (route.stream for route in config.routes)
        self._made: set[str] = {*config.streams, *named, *routed}  # in MongoDB, or in the configuration
        self._looks_again = False  # at the next poll
        self._retentions: dict[str, Retention] = {}
        self._channel = channel
        self._unread: Callable[[Stream], int | None] = lambda _stream: None
        self._disk: Callable[[str], Disk | None] = lambda _database: None
        self._looked_at = -math.inf

    def __iter__(self) -> Iterator[Stream]:
        """Yield every stream that is known here."""
        return iter(list(self._open.values()))

    def keep(self, unread: Callable[[Stream], int | None]) -> None:
        """Let retention keep messages from ``unread(stream)`` on, the oldest unread one; None: none is."""
        self._unread = unread

    def database_name(self, name: str) -> str:
        """Return the name of the database of a stream, made or not; raises :class:`BadStream`."""
        return self._config.stream(check_stream(name)).database or self._config.broker.database

    def open(self, name: str) -> Stream:
        """Return the stream of this name, made or not: for configured streams, and those in MongoDB."""
        stream = self._open.get(name)
        if stream is None:
            settings, database = self._config.stream(check_stream(name)), self.database_name(name)
            store = StreamStore(self._database(database), name)
            stream = Stream(name, settings, store, self._context, self._channel(database))
            self._open[name] = stream
            self._retentions[name] = Retention(settings, store, self._context.guard, stream.kept_from)
        return stream

    def get(self, name: str) -> Stream:
        """Return the stream of this name; reads MongoDB if it is not known. Raises :class:`BadStream`."""
        if name not in self._made and name not in self._found(check_stream(name)):
            raise BadStreamError(f"there is no stream {name!r}")
        self._made.add(name)
        return self.open(name)

    def known(self, name: str) -> Stream | None:
        """Return the stream of this name, if this broker knows it."""
        return self._open.get(name)

    def for_publish(self, name: str, *, caller: Caller, peer: str | None = None) -> Stream:
        """Return the stream of this name, made if that is allowed; raises :class:`BadStream`, or Forbidden.

        ``peer``: the connection that publishes, whose rate of new names is limited (:class:`QueueFull`);
        None: the operator.
        """
        stream = self._open.get(name)
        if stream is not None and name in self._made:
            return stream
        check_stream(name)
        settings = self._config.broker
        if not settings.auto_create and name not in self._made:
            raise BadStreamError(f"there is no stream {name!r} here, and auto_create is off")
        if name not in self._made:
            if not caller.may(Action.CREATE, name):
                self._looks_again = True  # another broker may have made it
            authorize(caller, Action.CREATE, name)
            context = self._context
            there, most = len(self._open), settings.max_queues
            context.names.ask(f"stream {name!r}", peer, context.timer.now(), there=there, most=most)
            self._made.add(name)
        return self.open(name)

    def names(self) -> list[str]:
        """Return the names of all streams, with those of other brokers; reads MongoDB."""
        found = (name for database in self._databases() for name in stream_names(self._database(database)))
        return sorted(name for name in set(found) if is_queue_name(name))

    def discover(self) -> list[str]:
        """Note the names of all streams, and return them; reads MongoDB."""
        found = self.names()
        self._made.update(found)
        return found

    def sweep(self) -> None:
        """Apply retention to each stream; called once a lease. An error of one leaves the others theirs."""
        # Seconds between two looks at how much each stream keeps.
        looks = self._context.passed() - self._looked_at >= 60.0
        for name in self.discover():
            self._sweep(self.open(name), looks=looks)
        if looks:
            self._looked_at = self._context.passed()

    def bound_by(self, disk: Callable[[str], Disk | None]) -> None:
        """Let streams without a bound take no more where little is left of a database's disk."""
        self._disk = disk

    def kept(self) -> Iterator[Kept]:
        """Yield what each stream keeps, as of the last look."""
        for stream in self:
            messages, size, oldest = stream.kept
            bound, used = stream.settings.bounds, None
            if stream.settings.endless:
                disk = self._disk(self.database_name(stream.name))
                bound = "none: its disk"
                used = disk and size / max(1, disk.total * MUCH_OF_A_DISK)
            if messages:
                yield Kept("stream", stream.name, bound, messages, size, oldest, used)

    def read_newer(self) -> None:
        """Look for messages of other brokers in streams with waiting readers; called every second or so."""
        for stream in self:
            if stream.awaited:
                stream.read_newer()
        if self._looks_again:
            self._looks_again = False
            self.discover()

    def on_stored(self, event: BusEvent) -> None:
        """Look for a segment that another broker has published."""
        if not event.name:
            self.read_newer()
        elif stream := self._open.get(event.name):
            stream.read_newer(event.number)

    def on_segment(self, event: BusEvent) -> None:
        """Use a segment that another broker has sent whole."""
        stream = self._open.get(event.name)
        segment = read_carried(event.number, event.data)
        if stream and segment:
            stream.take_carried(segment)

    def remove(self, name: str) -> int:
        """Remove all messages of a stream; the next one published gets the next number.

        Returns how many there were. Its segments are removed later.
        """
        stream = self.get(name)
        end, first = stream.end(), stream.store.head().first
        stream.store.raise_first(end, erased=True)
        stream.kept_from(end)
        return max(0, end - first)

    def _sweep(self, stream: Stream, *, looks: bool) -> None:
        context = self._context
        stream.full = self._refusal(stream)
        try:
            removed = self._retentions[stream.name].sweep(
                context.clock.now(), context.passed(), lambda: self._unread(stream)
            )
            if looks:
                stream.kept = stream.store.kept()
        except UnavailableError as error:
            stream.counters.notice(Count.STORE_UNAVAILABLE, f"retention of stream {stream.name}: {error}")
        else:
            stream.counters.add(Count.SEGMENTS_REMOVED, removed)

    def _refusal(self, stream: Stream) -> QueueFullError | None:
        """Return why a stream takes no more messages; None: it does."""
        disk, reserve = self._disk(self.database_name(stream.name)), self._config.broker.disk_reserve
        if disk is None or disk.free >= reserve or not stream.settings.endless:
            return None
        return QueueFullError(
            f"stream {stream.name!r} has no bound, and the disk of MongoDB has {disk.free >> 20} MiB left, "
            f"less than disk_reserve ({reserve >> 20} MiB): make room, or set max_bytes or max_age"
        )

    def _found(self, name: str) -> list[str]:
        return stream_names(self._database(self.database_name(name)))

    def _databases(self) -> set[str]:
        named = (
            settings.database for settings in (*self._config.streams.values(), self._config.other_streams)
        )
        return {self._config.broker.database, *(database for database in named if database)}


def check_stream(name: object) -> str:
    """Return the name, if a stream may have it; raises :class:`BadStream`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadStreamError(f"{str(name)[:80]!r} is no name of a stream: {QUEUE_NAME_RULE}")


def summary(stream: Stream) -> StreamRow | None:
    """Return the numbers, bytes and times of a stream in MongoDB; None if it was erased and is empty."""
    tail, head = stream.store.tail(), stream.store.head()
    if head.erased and head.first == tail.next:
        return None
    return StreamRow(
        name=stream.name,
        first=head.first,
        last=tail.next - 1,
        messages=max(0, tail.next - head.first),
        bytes=stream.store.bytes_kept(),
        last_at=tail.at or None,
    )
