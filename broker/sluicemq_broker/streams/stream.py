"""One stream at this broker: published messages go to MongoDB, durable ones to readers.

Of a reader only its next number is known here: it reads a page, or waits until there is one. So a slow reader
costs nothing, and can go on at any broker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from typing import Any, Final

import gevent

from sluicemq.protocol.errors import QueueFullError, SluiceError
from sluicemq_broker.bus import BusEvent, BusKind, Channel
from sluicemq_broker.config import StreamSettings
from sluicemq_broker.runtime import Count, PartCounters, shielded
from sluicemq_broker.store import Segment, StreamKept, StreamStore
from sluicemq_broker.streams.batch import Batch
from sluicemq_broker.streams.carried import carried
from sluicemq_broker.streams.choosing import TURN
from sluicemq_broker.streams.segments import ChosenMessages, Recent, choose
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.topics import Topics
from sluicemq_broker.streams.writer import Writer
from sluicemq_devices.hub import let_others_run

#: Bytes of a page, at most, unless it has one message.
MOST_BYTES: Final = 4 << 20
_AT_ONCE: Final = nullcontext()

Woken = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reader's next page: messages from number ``first`` on with these topics, and their bounds."""

    first: int
    topics: Topics
    most: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A page for a reader: messages, where to go on, and how many wanted messages were removed before.

    ``more``: there was more, as far as was read; ``newest``: the newest number known here.
    """

    chosen: list[ChosenMessages]
    first: int
    gone: int
    newest: int
    more: bool


class Stream:
    """One stream: its writer, its newest segments, and the readers that wait for more."""

    def __init__(
        self,
        name: str,
        settings: StreamSettings,
        store: StreamStore,
        context: StreamServices,
        channel: Channel,
    ) -> None:
        self.name = name
        self.settings = settings
        self.store = store
        self.counters = PartCounters(context.counters)
        context = replace(context, counters=self.counters)
        self._context = context
        self._writer = Writer(store, context, settings.dedupe_window, self._stored)
        self._recent = Recent()
        self._waiting: dict[object, Woken] = {}
        self._channel = channel
        self._looking = self._read_again = False
        self._seen_by = 0  # the channel's epoch in which all segments of other brokers were read
        self.kept = StreamKept(0, 0, None)
        """How much is kept, as of the last look."""
        self.full: QueueFullError | None = None
        """The refusal of further messages; None: they are taken."""

    @property
    def busy(self) -> bool:
        """True while a published message is not stored."""
        return self._writer.busy

    @property
    def awaited(self) -> bool:
        """True if a reader waits for the next message."""
        return bool(self._waiting)

    @property
    def largest(self) -> int:
        """Bytes of memory for a page of one segment, as it comes from MongoDB and unpacked."""
        return 2 * self.store.weight or (16 << 20)  # while no page was read

    @property
    def newest(self) -> int:
        """The number of the newest message known here; 0: none."""
        return max(0, self._recent.next - 1)

    def publish(self, batch: Batch) -> None:
        """Store messages behind all others; never blocks. ``batch.done`` is called with the outcome.

        While the stream is full that is the refusal; a batch that was sent before may be stored already.
        """
        if self.full is not None and not batch.repeated:
            batch.done(self.full)
        else:
            self._writer.add(batch)

    # ------------------------------------------------------------------ read

    def read(self, wanted: Wanted, asking: AbstractContextManager[Any] = _AT_ONCE) -> Reading:
        """Return the next messages, from memory or from MongoDB; raises Unavailable.

        Blocks for MongoDB, which is read within ``asking``, and for the turn of a reader that chooses. The
        page may have fewer messages than wanted, or none: then ``more`` is true.
        """
        segments = self._recent.read(wanted.first, wanted.most_bytes)
        gone = 0
        if segments is None:
            with asking:
                page = self.store.read(wanted.first, wanted.most_bytes)
            segments, first = page.segments, max(wanted.first, page.first)
            if segments:
                first = max(first, segments[0].first)
            gone = first - wanted.first
            self.counters.add(Count.MESSAGES_GONE, gone)
            self._keep(segments)
            wanted = Wanted(first, wanted.topics, wanted.most, wanted.most_bytes)
        if wanted.topics.everything or not segments:
            return self._choose(segments, wanted, gone=gone)
        self._context.choosing.wait(wanted.topics.usage)
        return self._choose_counted(segments, wanted, gone=gone)

    def read_recent(self, wanted: Wanted, *, waits: bool = False) -> Reading | None:
        """Return the next messages from memory, at once; None: :meth:`read` must be called.

        ``waits``: the reader waits for an empty page, which is returned if no newer message is known.
        """
        segments = self._recent.read(wanted.first, wanted.most_bytes)
        if segments is not None:
            if wanted.topics.everything:
                return self._choose(segments, wanted, gone=0)
            if self._context.choosing.may_choose(wanted.topics.usage):
                return self._choose_counted(segments, wanted, gone=0)
            return None
        if waits and wanted.first == self._recent.next and self._seen_by == self._channel.epoch != 0:
            return Reading([], wanted.first, 0, self.newest, more=False)
        return None

    def segments(self, first: int) -> tuple[list[Segment], int]:
        """Return whole segments from the one with this message on, and the oldest number that is kept."""
        recent = self._recent.read(first, MOST_BYTES)
        if recent is not None:
            return recent, first
        if first == self._recent.next and self._seen_by == self._channel.epoch != 0:
            return [], first  # an event comes for each segment of another broker
        page = self.store.read(first, MOST_BYTES)
        self._keep(page.segments)
        return page.segments, page.first

    def few(self, first: int, most: int) -> list[Segment]:
        """Return the segments from this message on, if they are in memory and have few messages."""
        segments = self._recent.read(first, MOST_BYTES)
        return segments if segments and segments[-1].next - segments[0].first <= most else []

    def end(self) -> int:
        """Return the number of the next message that will be published; reads MongoDB."""
        return self.store.tail().next

    def since(self, time: float) -> int:
        """Return the number of the first message from this time (Unix seconds) on; reads MongoDB."""
        return self.store.since(time)

    def _choose_counted(self, segments: list[Segment], wanted: Wanted, *, gone: int) -> Reading:
        with self._context.choosing.counted(wanted.topics.usage):
            return self._choose(segments, wanted, gone=gone)

    def _choose(self, segments: list[Segment], wanted: Wanted, *, gone: int) -> Reading:
        chosen: list[ChosenMessages] = []
        first, left, size = wanted.first, wanted.most, wanted.most_bytes
        began = thread_time()
        for segment in segments:
            found, first = self._chosen(segment, first, wanted.topics, left)
            if found:
                chosen.append(found)
                left -= found.count
                size -= len(found.packed)
            if left <= 0 or size <= 0 or first < segment.next or thread_time() - began > TURN:
                break  # the reader asks for the rest
        self.counters.add(Count.MESSAGES_READ, sum(part.count for part in chosen))
        self.counters.add(Count.READ_BYTES, sum(len(part.packed) for part in chosen))
        newest = max(self.newest, segments[-1].next - 1 if segments else 0)
        return Reading(chosen, first, gone, newest, more=bool(segments))

    def _chosen(
        self, segment: Segment, first: int, topics: Topics, most: int
    ) -> tuple[ChosenMessages | None, int]:
        """Choose messages of a segment; one with fewer than it says is passed over."""
        try:
            return choose(segment, first, topics, most)
        except (IndexError, ValueError, SluiceError) as error:
            self.store.set_aside(segment, f"its messages: {type(error).__name__}: {error}")
            return None, segment.next

    def _keep(self, segments: list[Segment]) -> None:
        """Keep segments in memory that follow those that are there."""
        if segments and segments[0].first <= self._recent.next:
            for segment in segments:
                self._recent.add(segment)

    # ------------------------------------------------------------------ wait

    def wait(self, key: object, first: int, woken: Woken) -> None:
        """Call ``woken`` once when message ``first`` is there, or may be; :meth:`forget` ends it.

        Call this right after a read that found nothing, without a switch to other greenlets.
        """
        if 0 < first < self._recent.next:
            gevent.spawn(_wake_all, [woken])
            return
        self._waiting[key] = woken
        if self._seen_by != self._channel.epoch:
            self.read_newer()  # events before this wait were ignored

    def forget(self, key: object) -> None:
        """Undo :meth:`wait` for this key."""
        self._waiting.pop(key, None)

    def kept_from(self, first: int) -> None:
        """Give readers no messages before this number any more."""
        self._recent.forget(first)

    def take_carried(self, segment: Segment) -> None:
        """Give waiting readers a segment from an event of another broker, if it is the next one."""
        if self._waiting and segment.first == self._recent.next:
            self._recent.add(segment)
            self._wake()

    def read_newer(self, first: int = 0) -> None:
        """Look for a segment of another broker, which may begin with this number; never blocks."""
        if 0 < first < self._recent.next or (first and first == self._writer.place):
            return  # known, or one of ours
        if not self._waiting:
            self._seen_by = 0
            return
        self._read_again = True
        if not self._looking:
            self._looking = True
            gevent.spawn(self._read_newer)

    def _read_newer(self) -> None:
        try:
            while self._read_again:
                self._read_again = False
                self._seen_by = self._channel.epoch
                self._find_newer()
        except SluiceError as error:
            self._seen_by = 0
            self._context.counters.notice(Count.STORE_UNAVAILABLE, f"reading stream {self.name}: {error}")
        finally:
            self._looking = False

    def _find_newer(self) -> None:
        """Read segments of other brokers, and wake waiting readers as soon as there is one."""
        first, more = self._recent.next, True
        if not first:
            self._recent.begin(self.store.tail().next)
            self._wake()  # readers may have read before this
            return
        while more:
            page = self.store.read(first, MOST_BYTES)
            for segment in page.segments:
                self._recent.add(segment)
            if self._recent.next > first or page.first > first:
                self._wake()
            more = page.more and self._recent.next > first
            first = self._recent.next

    def _stored(self, segment: Segment) -> None:
        """Add a durable segment of ours; behind a gap waiting readers read the segments between."""
        self._recent.add(segment)
        self._wake()
        if self._channel.shared:
            event = BusEvent(BusKind.STREAM, self.name, segment.first, carried(segment))
            self._channel.announce(event)
        self.counters.add(Count.PUBLISHED_BYTES, len(segment.packed))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        # Readers that are woken at once: a tenth of a millisecond sooner than by a greenlet.
        if len(waiting) > 4:
            gevent.spawn(_wake_all, list(waiting.values()))
        else:
            for woken in waiting.values():
                shielded(woken)


def _wake_all(woken: list[Woken]) -> None:
    began = perf_counter()
    for reader in woken:
        reader()
        if perf_counter() - began > TURN:
            let_others_run()
            began = perf_counter()
