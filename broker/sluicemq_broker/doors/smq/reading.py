"""Who reads streams: one READ is a page of messages, or waits for the next one.

Nothing is kept of a reader between two READs, so one that is slow, or gone, costs nobody anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, SluiceError, Unavailable
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.doors.smq.fields import Fields, take
from sluicemq_broker.runtime import QuerySlots
from sluicemq_broker.streams import Reading, Stream, Streams, Topics, Usage, Wanted, check_stream
from sluicemq_devices.hub import Shares, Watermark, nothing
from sluicemq_devices.sockets import Lane, Ration

#: READs of one session that wait, or are being answered, at most.
MOST_AT_ONCE: Final = 64
#: READs of all sessions that ask MongoDB at once: they share its connections with the jobs.
_ASK_AT_ONCE: Final = 12
_MOMENT: Final = 1e-9  # seconds; a sleep of 0 would run before timers

#: Bytes of memory for the topics of all READs under way; one session alone may have half of them. Those
#: of a READ that take less than a few KiB are not counted: a session has few READs.
_TOPICS_BYTES: Final = 64 << 20
_FEW_BYTES: Final = 4096

#: Told the answer, or the error, of one READ.
Answered = Callable[[int, dict[str, Any] | SluiceError], None]


class _Options(NamedTuple):
    """What a READ asks for; ``first``: 0 for what is published from now on."""

    first: int | None
    since: float | None
    from_oldest: bool
    topics: Topics
    most: int
    most_bytes: int
    wait: float


class ReadBounds:
    """The bounds that the READs of all sessions share: places to ask MongoDB, memory for their topics."""

    def __init__(self) -> None:
        self.places = QuerySlots(_ASK_AT_ONCE)
        mark = Watermark(sys.maxsize, _TOPICS_BYTES, nothing, nothing)
        self._topics: Shares[Reads] = Shares(mark, lambda _reads: None)

    def take(self, reads: Reads, size: int) -> None:
        """Count the topics of one READ; raises :class:`Unavailable` where there is no room for them."""
        if size < _FEW_BYTES:
            return
        if not self._topics.has_room(reads, 1, size):
            raise Unavailable("the topics of all READs under way take too much memory: ask again")
        self._topics.take(reads, 1, size)

    def give(self, reads: Reads, size: int) -> None:
        """Note that the READ has its answer."""
        if size >= _FEW_BYTES:
            self._topics.give(reads, 1, size)

    def forget(self, reads: Reads) -> None:
        """The session has ended."""
        self._topics.forget(reads)


class Reads:
    """The READs of one session."""

    def __init__(self, streams: Streams, bounds: ReadBounds, lane: Lane, answered: Answered) -> None:
        self.streams = streams
        self._lane = lane
        self.guest = bounds.places.user()
        self.under_way: set[Read] = set()
        self._usage = Usage()
        self._bounds = bounds
        self._answered = answered

    @property
    def ration(self) -> Ration:
        """The account of the session in the memory for answers."""
        return self._lane.ration

    def read(self, number: int, fields: Fields) -> None:
        """Answer a READ, now or later; raises what refuses it."""
        name, options = take(fields, str, dict)
        if len(self.under_way) >= MOST_AT_ONCE:
            raise BadFrames(f"{MOST_AT_ONCE} READs are under way: wait for an answer")
        read = Read(self, number, check_stream(name), _options(options, self._usage))
        self._bounds.take(self, read.size)
        self.under_way.add(read)
        read.begin()

    def answer(self, read: Read, outcome: dict[str, Any] | SluiceError) -> None:
        """It is through."""
        if read in self.under_way:
            self.under_way.discard(read)
            self._bounds.give(self, read.size)
            self._answered(read.number, outcome)
            self.guest.answered()

    def forget(self) -> None:
        """The session has ended."""
        for read in list(self.under_way):
            self.under_way.discard(read)
            read.end()
        self._bounds.forget(self)


class Read:
    """One READ: it reads until it has something, or has come to the end and waited there long enough.

    Each page is read when there is room for its bytes, which are reserved until it is sent, or is empty: a
    READ that looks through a long stream for nothing holds the room for one page at a time.
    """

    def __init__(self, reads: Reads, number: int, name: str, options: _Options) -> None:
        self.number = number
        self.size = options.topics.bytes
        self._reads = reads
        self._name = name
        self._options = options
        self._stream: Stream
        self._first = options.first or 0
        self._timer: Any = None
        self._over = options.wait <= 0
        self._size = options.most_bytes  # of the next page
        self._reserved = 0

    def begin(self) -> None:
        """Answer at once what lies in memory; else ask MongoDB, in a greenlet."""
        known = self._reads.streams.known(self._name)
        if known is not None and self._first:
            self._stream = known
            self._read_on()
        else:
            gevent.spawn(self._shielded, self._find)

    def end(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
            self._stream.forget(self)

    def _find(self) -> None:
        with self._reads.guest.slot():
            self._stream = self._reads.streams.get(self._name)
            if not self._first:
                since = self._options.since
                self._first = self._stream.end() if since is None else self._stream.since(since)
        self._read_on()

    def _read_on(self) -> None:
        """Go on when there is room for a page."""
        self._size = max(self._size, self._stream.largest)
        self._reads.ration.when_room(self._size, self._has_room)

    def _has_room(self, has_room: bool) -> None:  # noqa: FBT001 - as it is called
        if not has_room:
            return
        self._reserved = self._size
        if self in self._reads.under_way:
            self._shielded(self._go_on)
        else:
            self._give_back()

    def _give_back(self) -> None:
        """Nothing is being read any more."""
        size, self._reserved = self._reserved, 0
        if size:
            self._reads.ration.release(size)

    def _go_on(self) -> None:
        """Read on from memory; None in it: from MongoDB."""
        reading = self._stream.read_recent(self._wanted(), waits=not self._over)
        if reading is None:
            gevent.spawn(self._shielded, self._ask)
        else:
            self._take(reading)

    def _ask(self) -> None:
        if self not in self._reads.under_way:
            self._give_back()
            return
        self._take(self._stream.read(self._wanted(), self._reads.guest.slot()))

    def _take(self, reading: Reading) -> None:
        if self not in self._reads.under_way:
            self._give_back()
            return
        gone = 0 if self._options.from_oldest else reading.gone
        at_end = not reading.more
        size = sum(len(each.packed) for each in reading.chosen)
        if size > self._size and not self._reads.ration.fits(size - self._size):
            self._give_back()  # it is larger than the pages before it, and others have taken the room
            self._size = size
            self._read_on()
            return
        if reading.chosen or gone or (at_end and self._over):
            self.end()
            first = self._first
            self._reads.answer(self, _answer(reading, [first, first + gone - 1] if gone else None))
            self._give_back()
            return
        self._first = reading.first
        if at_end:
            self._wait()
        else:  # none of these is wanted: others have their turn, and the memory
            self._give_back()
            gevent.spawn(self._shielded, self._soon)

    def _soon(self) -> None:
        gevent.sleep(_MOMENT)
        if self in self._reads.under_way:
            self._read_on()

    def _wait(self) -> None:
        self._give_back()
        if self._timer is None:
            self._timer = gevent.get_hub().loop.timer(self._options.wait)
            self._timer.start(self._time_is_up)
        self._stream.wait(self, self._first, self._woken)

    def _woken(self) -> None:
        if self in self._reads.under_way:
            self._read_on()

    def _time_is_up(self) -> None:
        self._over = True
        self.end()
        if self in self._reads.under_way:
            nothing = Reading([], self._first, 0, self._stream.newest, more=False)
            self._reads.answer(self, _answer(nothing, None))

    def _shielded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            self.end()
            self._give_back()
            self._reads.answer(self, refusal(error))

    def _wanted(self) -> Wanted:
        return Wanted(self._first, self._options.topics, self._options.most, self._options.most_bytes)


def _answer(reading: Reading, gone: list[int] | None) -> dict[str, Any]:
    rows = [
        [each.segment.first, each.segment.at, each.packed, None if each.places is None else list(each.places)]
        for each in reading.chosen
    ]
    return {"rows": rows, "after": reading.first - 1, "gone": gone, "newest": reading.newest}


def _options(given: dict[Any, Any], usage: Usage) -> _Options:
    """Read the options of a READ; raises :class:`BadFrames`, or BadTopic."""
    unknown = given.keys() - {"after", "since", "new", "topics", "most", "bytes", "wait"}
    if unknown:
        raise BadFrames(f"a READ has no option {min(map(str, unknown))[:64]!r}")
    after = _number(given, "after", 0, 2**62, 0)
    most = _number(given, "most", 1, wire.MOST_READ, wire.MOST_READ)
    most_bytes = _number(given, "bytes", 1, wire.MOST_READ_BYTES, wire.MOST_READ_BYTES // 4)
    since, wait = _seconds(given, "since"), _seconds(given, "wait") or 0.0
    if wait > wire.LONGEST_WAIT:
        raise BadFrames(f"a READ waits {wire.LONGEST_WAIT:g} seconds at most")
    topics = given.get("topics", [])
    if not isinstance(topics, list) or not all(isinstance(each, bytes) for each in topics):
        raise BadFrames("the topics of a READ are an array of bin")
    elsewhere = since is not None or given.get("new") is True
    first = None if elsewhere else after + 1
    return _Options(first, since, first == 1, Topics(topics, usage), most, most_bytes, wait)


def _number(given: dict[Any, Any], key: str, least: int, largest: int, default: int) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise BadFrames(f"{key} of a READ is a number from {least} to {largest}, not {str(value)[:64]!r}")
    return value


def _seconds(given: dict[Any, Any], key: str) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise BadFrames(f"{key} of a READ is a number of seconds, not {str(value)[:64]!r}")
    return float(value)
