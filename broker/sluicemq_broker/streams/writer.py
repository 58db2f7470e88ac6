"""The writer of one stream at this broker: batches become segments, one insert at a time.

Batches that come during an insert make the next segment, so segments grow with the load. If another broker's
segment was faster, the tail is read and the batches go behind it; messages that were stored meanwhile under
their ids are not stored again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import NamedTuple

from sluicemq.protocol.errors import ConflictError, SluiceError, UnavailableError
from sluicemq.protocol.packed import scan
from sluicemq_broker.runtime import Batcher, Count, shielded
from sluicemq_broker.store import Appended, Segment, StreamStore, Tail
from sluicemq_broker.streams.batch import Batch, Expected, StoredNumbers
from sluicemq_broker.streams.publishers import BatchNumber
from sluicemq_broker.streams.services import StreamServices


class _Answer(NamedTuple):
    """An answer to a batch, for the moment when the segment it was composed with is durable."""

    batch: Batch
    outcome: StoredNumbers | SluiceError


class Writer:
    """Stores batches in order; ``stored(segment)`` is called when one is durable, before ``done`` of batches.

    ``window``: seconds in which a message's own id is not stored twice.
    """

    def __init__(
        self, store: StreamStore, context: StreamServices, window: float, stored: Callable[[Segment], None]
    ) -> None:
        self._store = store
        self._context = context
        self._window = window
        self._stored = stored
        self.place = 0
        """The number at which the segment under way begins, or 0."""
        self._tail: Tail | None = None
        self._known_at = 0.0
        self._name = token_hex(8)
        self._numbers = itertools.count()
        self._waiting: dict[str, list[Batch]] = {}  # by each id: batches that are not stored yet
        self._progress = context.publishers.of_stream()
        self._later: dict[str, int] = {}  # by publisher in this write: the last batch found in the stream
        # Bytes of a segment, plus one batch at most: the hub reads and sends it in some milliseconds.
        # Bytes that each message counts beside its own, so that a segment has 4,096 messages, and a batch,
        # at most.
        # Bytes that each frame behind the second of a message counts: readers look at each frame.
        self._batches: Batcher[Batch] = Batcher(
            self._write,
            size=1 << 20,
            weigh=lambda batch: len(batch.packed) + 256 * batch.count + 32 * batch.frames,
            failed=self._failed,
        )

    @property
    def busy(self) -> bool:
        """True while a batch waits or is being stored."""
        return self._batches.busy

    def add(self, batch: Batch) -> None:
        """Store a batch behind all that were added before; never blocks."""
        for job_id in _ids(batch):
            self._waiting.setdefault(job_id, []).append(batch)
        self._batches.add(batch)

    # ------------------------------------------------- one segment, in its greenlet

    def _write(self, batches: list[Batch]) -> None:
        self._later = {batch.numbered.publisher: 0 for batch in batches if batch.numbered}
        try:
            if not self._store.prepared:
                self._context.retry.run(partial(self._store.prepare, self._context.clock.now()))
            if self._tail is None:
                # Before the look-up: what is stored behind this tail, and is not found there, is read on.
                self._read_newer()
            self._look_up(batches)
            left = batches
            while left:
                left = self._try(left)
        except SluiceError as error:
            self._refuse(batches, error)

    def _try(self, batches: list[Batch]) -> list[Batch]:
        """Try once to store batches; returns those to be tried again."""
        tail = self._fresh_tail(batches)
        segment, answers = self._compose(batches, tail)
        if segment is None:
            self._answer(answers)
            return []
        sent = self._context.passed()
        self.place = segment.first
        try:
            outcome = self._context.retry.run(partial(self._store.append, segment))
        finally:
            self.place = 0
        if outcome is Appended.STORED and self._still_there(segment):
            self._tail, self._known_at = Tail(segment.next, segment.at, segment.total), sent
            shielded(self._stored, segment)
            self._answer(answers)
            return []
        self._read_newer()
        return batches

    def _fresh_tail(self, batches: Sequence[Batch]) -> Tail:
        """Return the tail; read again if it is known for too long, or a batch expects a later one."""
        tail = self._tail
        if (
            tail is None
            or self._context.passed() - self._known_at > self._context.guard
            or any(batch.expected and batch.expected.last >= tail.next for batch in batches)
        ):
            tail = self._read_newer()
        return tail

    def _read_newer(self) -> Tail:
        """Read the tail and newer segments of other brokers; note batches here that are stored in them."""
        retry = self._context.retry
        while True:
            began = self._context.passed()
            tail = self._tail
            if tail is None:
                tail, newer = retry.run(self._store.tail), []
            else:
                newer = retry.run(partial(self._store.newer, tail))
            for segment in newer:
                self._stored_elsewhere(segment)
                tail = Tail(segment.next, segment.at, segment.total)
            self._tail, self._known_at = tail, began
            if not newer:
                return tail

    def _stored_elsewhere(self, segment: Segment) -> None:
        for message_id, place in zip(segment.ids, segment.places, strict=True):
            if numbered := BatchNumber.read(message_id):
                self._progress.pass_by(numbered)
                self._overtaken(numbered)
            for batch in self._waiting.get(message_id, ()):
                batch.numbers[message_id] = segment.first + place

    def _still_there(self, segment: Segment) -> bool:
        """False if retention had passed its place before it was stored: no reader will find it."""
        if self._context.passed() - self._known_at <= self._context.guard:
            return True  # the tail was read so lately that retention can't have passed it
        head = self._context.retry.run(self._store.head)
        return segment.first >= head.removed

    def _look_up(self, batches: Sequence[Batch]) -> None:
        """Look up batches that may be stored already; those that other brokers store later are seen."""
        unsure = [batch for batch in batches if batch.ids or (batch.key and not self._is_new(batch))]
        if unsure:
            self._look_up_ids(unsure)
            self._look_behind(
                [batch.numbered for batch in unsure if batch.numbered and not self._is_new(batch)]
            )
        for batch in batches:
            if batch.numbered:
                self._progress.pass_by(batch.numbered)

    def _is_new(self, batch: Batch) -> bool:
        """True if its number says that the stream can't have it."""
        return batch.numbered is not None and not batch.repeated and self._progress.is_new(batch.numbered)

    def _look_behind(self, unsure: Sequence[BatchNumber]) -> None:
        """Find out which publishers have later batches in the stream; the others are known from now on."""
        last = list({batch.publisher: batch for batch in sorted(unsure)}.values())
        some = self._has_behind(last)
        for batch in last:
            if some and (len(last) == 1 or self._has_behind([batch])):
                self._overtaken(batch._replace(number=batch.number + 1))
            else:
                self._progress.note(batch)

    def _has_behind(self, batches: Sequence[BatchNumber]) -> bool:
        ranges = [batch.later_ids for batch in batches]
        return bool(ranges) and self._context.retry.run(partial(self._store.has_between, ranges))

    def _overtaken(self, by: BatchNumber) -> None:
        """Note that the stream has this batch, if another one of its publisher is being written."""
        if self._later.get(by.publisher, by.number) < by.number:
            self._later[by.publisher] = by.number

    def _is_late(self, batch: Batch) -> bool:
        """True if its publisher has gone on over a later connection, and sends this batch there."""
        if batch.numbered is None or batch.repeated:
            return False
        return batch.numbered.number < self._later.get(batch.numbered.publisher, 0)

    def _look_up_ids(self, wanted: Sequence[Batch]) -> None:
        ids = {job_id for batch in wanted for job_id in _ids(batch)}
        there = self._context.retry.run(partial(self._store.stored, ids))
        oldest = self._context.clock.now() - self._window
        for batch in wanted:
            stored_before = batch.key in there
            for message_id in _ids(batch):
                number, at = there.get(message_id, (0, 0.0))
                if number and (stored_before or at >= oldest):
                    batch.numbers[message_id] = number

    def _compose(self, batches: Sequence[Batch], tail: Tail) -> tuple[Segment | None, list[_Answer]]:
        """Return the segment of new messages, if there are any, and the answers to all batches.

        An answer may rest on this segment: a second copy of a message in it, or a conflict with one. So none
        is given before it is durable. If its place is taken, all is composed again behind the new tail.
        """
        answers: list[_Answer] = []
        packed, topics, ids = list[bytes](), list[bytes](), dict[str, int]()
        for batch in batches:
            first = tail.next + len(topics)
            there = batch.there(
                {message_id: tail.next + ids[message_id] for message_id in _ids(batch) & ids.keys()}
            )
            if len(there) == batch.count:
                answers.append(_Answer(batch, StoredNumbers(0, there)))
                continue
            problem = self._problem(batch, first, topics, tail)
            if problem:
                answers.append(_Answer(batch, problem))
                continue
            ids |= _places(batch, there, len(topics))
            part, its_topics = batch.new_part(there)
            packed.append(part)
            topics += its_topics
            answers.append(_Answer(batch, StoredNumbers(first, there)))
        segment = self._segment(tail, b"".join(packed), topics, ids) if topics else None
        return segment, answers

    def _segment(self, tail: Tail, packed: bytes, topics: list[bytes], ids: dict[str, int]) -> Segment:
        return Segment(
            tail.next,
            len(topics),
            max(self._context.clock.now(), tail.at),
            len(packed),
            tail.total + len(packed),
            f"{self._name}:{next(self._numbers)}",
            packed,
            tuple(sorted(set(topics))),
            tuple(ids),
            tuple(ids.values()),
        )

    def _problem(self, batch: Batch, first: int, topics: list[bytes], tail: Tail) -> SluiceError | None:
        """Return why a batch can't be stored from this number on, behind these topics; None: it can."""
        if self._is_late(batch):
            return UnavailableError(
                "later messages of this publisher are stored: send it again, marked as such"
            )
        return self._conflict(batch.expected, first, topics, tail)

    def _conflict(
        self, expected: Expected | None, first: int, topics: list[bytes], tail: Tail
    ) -> ConflictError | None:
        """Return why what is expected does not hold there; None: it does."""
        if expected is None:
            return None
        if expected.topic is None:
            last, what = first - 1, "the stream"
        else:
            what = f"topic {expected.topic.decode(errors='replace')!r}"
            last = self._last_of(expected.topic, topics, tail)
        if last == expected.last:
            return None
        return ConflictError(f"{what} ends with {last}, not with {expected.last}: nothing was stored", last)

    def _last_of(self, topic: bytes, topics: list[bytes], tail: Tail) -> int:
        """Return the number of the newest message with a topic, among those to be stored, too; 0: none."""
        for at in reversed(range(len(topics))):
            if topics[at] == topic:
                return tail.next + at
        found = self._context.retry.run(partial(self._store.last_of_topic, topic))
        if found is None:
            return 0
        first, _count = found
        page = self._context.retry.run(partial(self._store.read, first, 1))
        for segment in page.segments[:1]:
            there = scan(segment.packed)[1]
            numbers = [segment.first + at for at, found in enumerate(there) if found == topic]
            return max((number for number in numbers if number >= page.first), default=0)
        return 0

    # ----------------------------------------------------------------- settled

    def _failed(self, batches: list[Batch]) -> None:
        self._refuse(batches, UnavailableError("the broker failed on this; its log says why"))

    def _refuse(self, batches: Iterable[Batch], error: SluiceError) -> None:
        for batch in batches:
            self._settle(batch, error)

    def _answer(self, answers: Iterable[_Answer]) -> None:
        for batch, outcome in answers:
            self._settle(batch, outcome)

    def _settle(self, batch: Batch, outcome: StoredNumbers | SluiceError) -> None:
        if batch.settled:
            return
        batch.settled = True
        for job_id in _ids(batch):
            waiting = self._waiting[job_id]
            waiting.remove(batch)
            if not waiting:
                del self._waiting[job_id]
        if isinstance(outcome, StoredNumbers):
            self._context.counters.add(Count.PUBLISHED, batch.count - len(outcome.there))
            self._context.counters.add(Count.PUBLISHED_AGAIN, len(outcome.there))
        shielded(batch.done, outcome)


def _ids(batch: Batch) -> set[str]:
    """Return all ids under which a batch or its messages can be found in the stream."""
    return {batch.key, *batch.ids} if batch.key else set(batch.ids)


def _places(batch: Batch, there: Mapping[int, int], start: int) -> dict[str, int]:
    """Return the places of a batch's new messages, all but those that are there, in a segment, by ids."""
    places = {batch.key: start} if batch.key else {}
    if batch.ids:
        new = [at for at in range(batch.count) if at not in there]
        left = {at: start + place for place, at in enumerate(new)}
        places |= {message_id: left[at] for message_id, at in batch.ids.items() if at in left}
    return places
