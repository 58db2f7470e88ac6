"""The verb READ: a session gets a page of messages of a stream, or waits for the next ones.

Nothing is kept of a reader between two READs, so a slow reader, or one that has left, costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, SluiceError, UnavailableError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rules import number, whole
from sluicemq_broker.doors import Fields, refusal, take
from sluicemq_broker.runtime import IS_TRUE, QuerySlots, array_of, read_options
from sluicemq_broker.security import Caller, authorize
from sluicemq_broker.streams import Reading, Stream, Streams, Topics, Usage, Wanted, check_stream
from sluicemq_devices.hub import Shares, Watermark, let_others_run, nothing
from sluicemq_devices.sockets import Lane, Ration

#: READs of one session under way at most.
MOST_AT_ONCE: Final = 64

#: Topics of one READ with fewer bytes are not counted: a session has few READs.
_FEW_BYTES: Final = 4096

#: Called with the number of a READ, and its answer or error.
Answered = Callable[[int, dict[str, Any] | SluiceError], None]


class _Options(NamedTuple):
    """A READ. ``first``: the number of the first message; None: given by ``since``, or the next one."""

    first: int | None
    since: float | None
    from_oldest: bool
    topics: Topics
    most: int
    most_bytes: int
    wait: float


class ReadBounds:
    """The bounds that the READs of all sessions share: queries at MongoDB, memory for topics."""

    def __init__(self) -> None:
        # READs of all sessions that ask MongoDB at one time: they share its connections with the jobs.
        self.slots = QuerySlots(12)
        # Memory for the topics of all READs under way; one session alone may have half of it
        mark = Watermark(sys.maxsize, 64 << 20, nothing, nothing)
        self._topics: Shares[Reads] = Shares(mark, lambda _reads: None)

    def take(self, reads: Reads, size: int) -> None:
        """Count the topics of one READ; raises :class:`Unavailable` where there is no memory for them."""
        if size < _FEW_BYTES:
            return
        if not self._topics.has_room(reads, 1, size):
            raise UnavailableError("the topics of all READs under way take too much memory: ask again")
        self._topics.take(reads, 1, size)

    def give(self, reads: Reads, size: int) -> None:
        """Note that a READ was answered."""
        if size >= _FEW_BYTES:
            self._topics.give(reads, 1, size)

    def forget(self, reads: Reads) -> None:
        """Forget a session that has ended."""
        self._topics.forget(reads)


class Reads:
    """The READs of one session."""

    def __init__(self, streams: Streams, bounds: ReadBounds, lane: Lane, answered: Answered) -> None:
        self.streams = streams
        self._lane = lane
        self.user = bounds.slots.user()
        self.under_way: set[Read] = set()
        self._usage = Usage()
        self._bounds = bounds
        self._answered = answered

    @property
    def caller(self) -> Caller:
        """Principal that reads."""
        caller: Caller = self._lane.who
        return caller

    @property
    def ration(self) -> Ration:
        """The session's share of the memory for answers."""
        return self._lane.ration

    def read(self, number: int, fields: Fields) -> None:
        """Answer a READ, now or later; raises what refuses it."""
        name, options = take(fields, str, dict)
        if len(self.under_way) >= MOST_AT_ONCE:
            raise BadFramesError(f"{MOST_AT_ONCE} READs are under way: wait for an answer")
        read = Read(self, number, check_stream(name), _read_options(options, self._usage))
        self._bounds.take(self, read.size)
        self.under_way.add(read)
        read.begin()

    def answer(self, read: Read, outcome: dict[str, Any] | SluiceError) -> None:
        """Answer a READ."""
        if read in self.under_way:
            self.under_way.discard(read)
            self._bounds.give(self, read.size)
            self._answered(read.number, outcome)
            self.user.answered()

    def recheck_permission(self) -> None:
        """Answer READs that may no longer have what they wait for: permissions have changed."""
        for read in list(self.under_way):
            read.recheck_permission()

    def forget(self) -> None:
        """Forget a session that has ended."""
        for read in list(self.under_way):
            self.under_way.discard(read)
            read.end()
        self._bounds.forget(self)


class Read:
    """One READ: it reads page after page until one has messages, and waits at the end of the stream.

    Each page is read when there is memory for it, which is reserved until the page is sent, or is empty. A
    READ that finds nothing in a long stream reserves the memory of one page at a time.
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
        """Read from memory at once; else ask MongoDB, in a greenlet."""
        known = self._reads.streams.known(self._name)
        if known is not None and self._first:
            self._stream = known
            self._request_room()
        else:
            gevent.spawn(self._shielded, self._find)

    def end(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
            self._stream.forget(self)

    def _find(self) -> None:
        with self._reads.user.slot():
            self._stream = self._reads.streams.get(self._name)
            if not self._first:
                since = self._options.since
                self._first = self._stream.end() if since is None else self._stream.since(since)
        self._request_room()

    def _request_room(self) -> None:
        """Read the next page when there is memory for it."""
        self._size = max(self._size, self._stream.largest)
        self._reads.ration.when_room(self._size, self._has_room)

    def _has_room(self, has_room: bool) -> None:  # noqa: FBT001 - as it is called
        if not has_room:
            return
        self._reserved = self._size
        if self in self._reads.under_way:
            self._shielded(self._read_page)
        else:
            self._give_back()

    def _give_back(self) -> None:
        """Release the memory of a page."""
        size, self._reserved = self._reserved, 0
        if size:
            self._reads.ration.release(size)

    def _read_page(self) -> None:
        """Read a page from memory, or else from MongoDB."""
        reading = self._stream.read_recent(self._wanted(), waits=not self._over)
        if reading is None:
            gevent.spawn(self._shielded, self._ask)
        else:
            self._take(reading)

    def _ask(self) -> None:
        if self not in self._reads.under_way:
            self._give_back()
            return
        self._take(self._stream.read(self._wanted(), self._reads.user.slot()))

    def _take(self, reading: Reading) -> None:
        if self not in self._reads.under_way:
            self._give_back()
            return
        self.require_permission()  # it may have waited for long
        gone = 0 if self._options.from_oldest else reading.gone
        at_end = not reading.more
        size = sum(len(part.packed) for part in reading.chosen)
        if size > self._size and not self._reads.ration.fits(size - self._size):
            self._give_back()  # it is larger than the pages before it, and others have taken the memory
            self._size = size
            self._request_room()
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
        else:  # none of these is wanted: others get their turn, and the memory
            self._give_back()
            gevent.spawn(self._shielded, self._soon)

    def _soon(self) -> None:
        let_others_run()
        if self in self._reads.under_way:
            self._request_room()

    def _wait(self) -> None:
        self._give_back()
        if self._timer is None:
            self._timer = gevent.get_hub().loop.timer(self._options.wait)
            self._timer.start(self._time_is_up)
        self._stream.wait(self, self._first, self._woken)

    def _woken(self) -> None:
        if self in self._reads.under_way:
            self._request_room()

    def _time_is_up(self) -> None:
        self._over = True
        self.end()
        if self in self._reads.under_way:
            self._shielded(self._answer_nothing)

    def _answer_nothing(self) -> None:
        self.require_permission()
        nothing = Reading([], self._first, 0, self._stream.newest, more=False)
        self._reads.answer(self, _answer(nothing, None))

    def require_permission(self) -> None:
        """Raise Forbidden if it may no longer have what it waits for."""
        authorize(self._reads.caller, Action.SUBSCRIBE, self._name)

    def recheck_permission(self) -> None:
        """Answer it at once if it may no longer have what it waits for."""
        if not self._reads.caller.may(Action.SUBSCRIBE, self._name):
            self._shielded(self.require_permission)

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
        [part.segment.first, part.segment.at, part.packed, None if part.places is None else list(part.places)]
        for part in reading.chosen
    ]
    return {"rows": rows, "after": reading.first - 1, "gone": gone, "newest": reading.newest}


def _read_options(given: dict[Any, Any], usage: Usage) -> _Options:
    """Read the options of a READ; raises :class:`BadFrames`, or BadTopic."""
    options = read_options(given, _OPTIONS, "a READ")
    since = options.get("since")
    from_number = since is None and not options.get("new")
    first = options.get("after", 0) + 1 if from_number else None
    return _Options(
        first,
        since,
        first == 1,
        Topics(options.get("topics", []), usage),
        options.get("most", wire.MOST_READ),
        options.get("bytes", wire.MOST_READ_BYTES // 4),
        options.get("wait", 0.0),
    )


_OPTIONS: Final = {
    "after": whole(0, 2**62),
    "since": number(0, 2**40, "a number of Unix seconds"),
    "new": IS_TRUE,
    "topics": array_of(bytes, "an array of bin"),
    "most": whole(1, wire.MOST_READ),
    "bytes": whole(1, wire.MOST_READ_BYTES),
    "wait": number(0, wire.LONGEST_WAIT, f"a number of seconds from 0 to {wire.LONGEST_WAIT:g}"),
}
