"""One stream at this broker: what is published goes to MongoDB, what is durable to whoever reads.

A reader is nothing here but its next number: it reads a page, and where there is none yet it waits to be
woken. So one that is slow costs nobody anything, and any broker can go on with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from typing import Any, Final

import gevent

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.bus import BusEvent, BusKind, Channel
from sluicemq_broker.config import StreamSettings
from sluicemq_broker.runtime import Count, PartCounters, shielded
from sluicemq_broker.store import Segment, StreamStore
from sluicemq_broker.streams.batch import Batch
from sluicemq_broker.streams.carried import carried
from sluicemq_broker.streams.choosing import TURN
from sluicemq_broker.streams.segments import Chosen, Recent, choose
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.topics import Topics
from sluicemq_broker.streams.writer import Writer
from sluicemq_devices.hub import let_others_run

#: A page has so many bytes at most, or one message.
MOST_BYTES: Final = 4 << 20
_AT_ONCE: Final = nullcontext()
_UNKNOWN: Final = 16 << 20  # bytes of a page, while none was read
#: So many readers are woken in the turn in which they hear of it: a tenth of a millisecond sooner.
_FEW: Final = 4

Woken = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants next: messages from number ``first`` on with these topics, so many and bytes."""

    first: int
    topics: Topics
    most: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader is given: messages, where to go on, and how many before them are gone.

    ``more``: there was more, as far as was read; ``newest``: the newest number known here.
    """

    chosen: list[Chosen]
    first: int
    gone: int
    newest: int
    more: bool


class Stream:
    """One stream whole: its writer, its newest segments, and who waits for more."""

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
        self._looking = self._look_again = False
        self._seen_by = 0  # the channel's epoch in which all was read that others had stored

    @property
    def busy(self) -> bool:
        """True if anything published is not stored yet."""
        return self._writer.busy

    @property
    def awaited(self) -> bool:
        """True if anybody waits for its next message."""
        return bool(self._waiting)

    @property
    def largest(self) -> int:
        """Bytes that a page of one segment may take, as it comes from MongoDB and taken apart."""
        return 2 * self.store.weight or _UNKNOWN

    @property
    def newest(self) -> int:
        """The number of the newest message that is known here; 0: none is."""
        return max(0, self._recent.next - 1)

    def publish(self, batch: Batch) -> None:
        """Store messages behind all others; never blocks. ``batch.done`` hears of it."""
        self._writer.add(batch)

    # ------------------------------------------------------------------ read

    def read(self, wanted: Wanted, asking: AbstractContextManager[Any] = _AT_ONCE) -> Reading:
        """Return the next messages, from memory or from MongoDB; raises Unavailable.

        Blocks for MongoDB, which is asked within ``asking``, and for the turn of a reader that chooses. May
        be a part of what is wanted, or nothing: then ``more`` is true.
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

        ``waits``: nothing is an answer if no more has been told of, for whoever then waits.
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
        """Whole segments from the one with this message on, and the oldest number that is kept."""
        recent = self._recent.read(first, MOST_BYTES)
        if recent is not None:
            return recent, first
        if first == self._recent.next and self._seen_by == self._channel.epoch != 0:
            return [], first  # what others publish will be told
        page = self.store.read(first, MOST_BYTES)
        self._keep(page.segments)
        return page.segments, page.first

    def few(self, first: int, most: int) -> list[Segment]:
        """The segments from the one with this message on, if they are in memory and have so few messages."""
        segments = self._recent.read(first, MOST_BYTES)
        return segments if segments and segments[-1].next - segments[0].first <= most else []

    def end(self) -> int:
        """The number of the next message that will be published; asks MongoDB."""
        return self.store.tail().next

    def since(self, time: float) -> int:
        """The number of the first message that is not older, in Unix seconds; asks MongoDB."""
        return self.store.since(time)

    def _choose_counted(self, segments: list[Segment], wanted: Wanted, *, gone: int) -> Reading:
        with self._context.choosing.counted(wanted.topics.usage):
            return self._choose(segments, wanted, gone=gone)

    def _choose(self, segments: list[Segment], wanted: Wanted, *, gone: int) -> Reading:
        chosen: list[Chosen] = []
        first, left, size = wanted.first, wanted.most, wanted.most_bytes
        began = thread_time()
        for segment in segments:
            found, first = choose(segment, first, wanted.topics, left)
            if found:
                chosen.append(found)
                left -= found.count
                size -= len(found.packed)
            if left <= 0 or size <= 0 or first < segment.next or thread_time() - began > TURN:
                break  # the rest is asked for again
        self.counters.add(Count.MESSAGES_READ, sum(each.count for each in chosen))
        self.counters.add(Count.READ_BYTES, sum(len(each.packed) for each in chosen))
        newest = max(self.newest, segments[-1].next - 1 if segments else 0)
        return Reading(chosen, first, gone, newest, more=bool(segments))

    def _keep(self, segments: list[Segment]) -> None:
        """Some that were read: those that follow what is held here are held, too."""
        if segments and segments[0].first <= self._recent.next:
            for each in segments:
                self._recent.add(each)

    # ------------------------------------------------------------------ wait

    def wait(self, key: object, first: int, woken: Woken) -> None:
        """Call ``woken`` once when message ``first`` is there, or may be; :meth:`forget` ends it.

        Whoever has read and found nothing waits at once, without letting others run in between.
        """
        if 0 < first < self._recent.next:
            gevent.spawn(_wake_all, [woken])
            return
        self._waiting[key] = woken
        if self._seen_by != self._channel.epoch:
            self.look()  # what others have stored before anybody waited was told to nobody

    def forget(self, key: object) -> None:
        """Nobody waits under this key any more."""
        self._waiting.pop(key, None)

    def kept_from(self, first: int) -> None:
        """Messages before this number are kept no longer: give them to nobody."""
        self._recent.forget(first)

    def hear(self, segment: Segment) -> None:
        """Another broker has published this: if it is the next one, who waits need not look for it."""
        if self._waiting and segment.first == self._recent.next:
            self._recent.add(segment)
            self._wake()

    def look(self, first: int = 0) -> None:
        """Another broker may have published a segment, that begins with this number; never blocks."""
        if 0 < first < self._recent.next or (first and first == self._writer.place):
            return  # known, or one of ours, of which the answer will tell
        if not self._waiting:
            self._seen_by = 0
            return
        self._look_again = True
        if not self._looking:
            self._looking = True
            gevent.spawn(self._look)

    def _look(self) -> None:
        try:
            while self._look_again:
                self._look_again = False
                self._seen_by = self._channel.epoch
                self._find_newer()
        except SluiceError as error:
            self._seen_by = 0
            self._context.counters.notice(Count.STORE_UNAVAILABLE, f"reading stream {self.name}: {error}")
        finally:
            self._looking = False

    def _find_newer(self) -> None:
        """Read on what others have stored, and wake who waits as soon as there is something."""
        first, more = self._recent.next, True
        if not first:
            self._recent.begin(self.store.tail().next)
            self._wake()  # who waits may have read before this
            return
        while more:
            page = self.store.read(first, MOST_BYTES)
            for each in page.segments:
                self._recent.add(each)
            if self._recent.next > first or page.first > first:
                self._wake()
            more = page.more and self._recent.next > first
            first = self._recent.next

    def _stored(self, segment: Segment) -> None:
        """One of ours is durable; if others are between it and what is known, who waits reads them."""
        self._recent.add(segment)
        self._wake()
        if self._channel.shared:
            event = BusEvent(BusKind.STREAM, self.name, segment.first, carried(segment))
            self._channel.announce(event)
        self.counters.add(Count.PUBLISHED_BYTES, len(segment.packed))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if len(waiting) > _FEW:
            gevent.spawn(_wake_all, list(waiting.values()))
        else:
            for woken in waiting.values():
                shielded(woken)


def _wake_all(woken: list[Woken]) -> None:
    began = perf_counter()
    for each in woken:
        each()
        if perf_counter() - began > TURN:
            let_others_run()
            began = perf_counter()
