"""Find: jobs by id or by conditions, over all queues that the caller may read.

A request searches for a tenth of a second, or until it has found enough. Its answer says where to go on, so
no broker remembers a search: the next request may go to another broker, or come after a restart. A caller who
leaves costs nothing more.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import BadFramesError, UnavailableError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.readable import is_utf8
from sluicemq.protocol.rows import FoundEndRow, FoundJobRow, FoundPage, from_document, plain
from sluicemq.protocol.rules import IDENTIFIER, kept
from sluicemq_broker.admin.dead_letters import CHOICE
from sluicemq_broker.admin.jobs import place_of
from sluicemq_broker.context import Context
from sluicemq_broker.queues import Census, Queues
from sluicemq_broker.runtime import QuerySlots, SlotUser, Timer, read_options
from sluicemq_broker.security import Caller, visible
from sluicemq_broker.store import QUEUES_AT_ONCE, SHOWN_STATES, SLICE, Candidate, Search, Wanted, with_id
from sluicemq_devices.hub import in_parts, in_pieces

_MOST_FOUND: Final = 200
_LONGEST: Final = 256
_MOST_HEADERS: Final = 8


class Finder:
    """Searches for jobs, for about ``seconds`` at a time, in slices of ``size``."""

    def __init__(
        self,
        queues: Queues,
        census: Census,
        context: Context,
        seconds: float = 0.1,
        size: int = SLICE,
    ) -> None:
        self._queues = queues
        self._census = census
        self._clock = context.clock
        self._timer = context.timer
        self._seconds = seconds
        self._size = size
        # Searches at one time; one of each principal
        self._slots = QuerySlots(2, context.timer.now)
        self._users: dict[str, SlotUser] = {}
        self._asked = 0

    def find(self, options: dict[str, Any], limit: int, after: str | None, caller: Caller) -> FoundPage:
        """Return jobs behind a place that match all options, of one queue or of all that the caller reads.

        Raises BadFrames for an unknown option, for an ``id`` beside conditions, and for a wrong ``after``.
        """
        given = read_options(options, _OPTIONS, "a FIND")
        name, job_id = given.pop("queue", None), given.pop("id", None)
        if not 1 <= limit <= _MOST_FOUND:
            raise BadFramesError(f"limit {limit} is not from 1 to {_MOST_FOUND}")
        if job_id is not None and given:
            raise BadFramesError("a search by id has no other condition but its queue")
        if name is not None:
            self._queues.get(name)
        wanted = Wanted(**{**given, "states": tuple(given.get("states", ()))})
        seen = visible.names(caller, Action.READ) if name is None else name.__eq__
        cursor = _Cursor.read(after)
        with self._turn(caller):
            names = sorted(queue.name for queue in self._queues if seen(queue.name))
            if after is None and job_id is None:
                cursor = cursor._replace(total=self._count(seen, wanted.states))
            page = _Page(limit, self._seconds, self._timer, cursor)
            left = names[bisect_left(names, cursor.queue) :]
            if job_id is None:
                self._search(wanted, left, page)
            else:
                self._find_id(job_id, left, page, caller)
            return page.answer(len(names))

    def _count(self, seen: Callable[[str], bool], states: Sequence[str]) -> int:
        """Return about how many jobs a search looks at: those of one state that has an index, or all."""
        counted = states if len(states) == 1 and states[0] in Search.indexed else SHOWN_STATES
        rows = (row for row in self._census.rows() if seen(row.name))
        return sum(getattr(row, state) for row in rows for state in counted)

    def _search(self, wanted: Wanted, names: Sequence[str], page: _Page) -> None:
        now = self._clock.now()
        for name in names:
            if name != page.cursor.queue:
                page.go_to(name)
            queue = self._queues.known(name)
            if queue is not None:  # else it was removed meanwhile
                search = Search(self._queues.database_of(queue), name, wanted, now)
                size = self._size // 4 if search.reads_content else self._size
                if not page.take(search, size):
                    return
            if page.is_over:
                page.go_to(name + "\0")
                return
        page.ended = True

    def _find_id(self, job_id: str, names: Sequence[str], page: _Page, caller: Caller) -> None:
        now = self._clock.now()
        for some in in_parts(names, QUEUES_AT_ONCE):
            queues = [queue for queue in map(self._queues.known, some) if queue is not None]
            for database, these in self._queues.by_database(queues).items():
                page.add(with_id(database, these, job_id, now))
            for queue in in_pieces(queues):
                ends = visible.ends(caller, queue.ends(job_id, 1))
                page.ends += [FoundEndRow(queue=queue.name, **plain(end)) for end in ends]
            if page.is_over and some[-1] != names[-1]:
                page.go_to(some[-1] + "\0")
                return
        page.ended = True

    @contextmanager
    def _turn(self, caller: Caller) -> Iterator[None]:
        """Wait until this principal's turn has come; raises Unavailable where too many run or wait.

        Principals have one turn each, and half of the 16 places at most, so that nobody takes all of them.
        """
        user = self._users.get(caller.name) or self._slots.user()
        own = user.slots + len(user.later)
        if self._asked >= 16 or own >= 8:
            raise UnavailableError(
                f"{self._asked} searches wait already, {own} of this principal: try again in a second"
            )
        self._users[caller.name] = user
        self._asked += 1
        try:
            with user.slot():
                yield
        finally:
            self._asked -= 1
            if not user.slots:
                self._users.pop(caller.name, None)


class _Cursor(NamedTuple):
    """Where a search goes on: behind a place in a queue, or at its beginning, and what came before.

    ``pack`` and ``seq``: the last job that was found in a pack of which more are to come.
    """

    queue: str = ""
    searched: int = 0
    unread: int = 0
    total: int = 0
    pack: str = ""
    seq: int = 0
    place: tuple[Any, ...] = ()

    @classmethod
    def read(cls, after: str | None) -> _Cursor:
        """Read what :meth:`text` returned; raises BadFrames."""
        match place_of(after):
            case None:
                return cls()
            case [str() as queue, int() as searched, int() as unread, int() as total, *inside]:
                match inside:
                    case [str() as pack, int() as seq, *place]:
                        return cls(queue, searched, unread, total, pack, seq, tuple(place))
        raise BadFramesError("after must be the next of the page before")

    @property
    def text(self) -> str:
        """The cursor as a text of a few hundred bytes."""
        return json.dumps([*self[:-1], *self.place], separators=(",", ":"))


class _Page:
    """One page of a search, and how far it is; ``seconds``: how long it may take."""

    def __init__(self, limit: int, seconds: float, timer: Timer, cursor: _Cursor) -> None:
        self.cursor = cursor
        self.ended = False
        self.jobs: list[FoundJobRow] = []
        self.ends: list[FoundEndRow] = []
        self._limit = limit
        self._until = timer.now() + seconds
        self._timer = timer

    @property
    def is_over(self) -> bool:
        """True if enough is found, or the time is over."""
        return len(self.jobs) >= self._limit or self._timer.now() >= self._until

    def go_to(self, queue: str) -> None:
        """Go on with the beginning of a queue."""
        self.cursor = self.cursor._replace(queue=queue, pack="", seq=0, place=())

    def add(self, found: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Add jobs, each with its queue."""
        self.jobs += [_row(queue, job) for queue, job in found[: self._limit - len(self.jobs)]]

    def take(self, search: Search, size: int) -> bool:
        """Search on in the queue of the cursor; return True at its end, False where the page is over."""
        while True:
            at, began, unread = self._timer.now(), self.cursor, self.cursor.unread
            part = search.slice(list(began.place) or None, size)
            done: Candidate | None = None
            for found in search.found(part.candidates):
                jobs = [job for job in found.jobs if not self._has_had(found.candidate.id, job)]
                room = self._limit - len(self.jobs)
                self.add([(began.queue, job) for job in jobs])
                if len(jobs) > room:  # of a pack
                    self._stop(search, began, done, unread)
                    self.cursor = self.cursor._replace(pack=found.candidate.id, seq=jobs[room - 1]["seq"])
                    return False
                done, unread = found.candidate, unread + found.unread
                if self.is_over and self._stop(search, began, done, unread):
                    return False
            searched = began.searched + part.looked
            self.cursor = began._replace(
                searched=searched, unread=unread, pack="", place=tuple(part.end or ())
            )
            if part.end is None or self.is_over:
                return part.end is None
            self._timer.sleep(self._timer.now() - at)  # others have the processors for as long

    def _stop(self, search: Search, began: _Cursor, done: Candidate | None, unread: int) -> bool:
        """Let the next page begin behind a candidate of this slice; False: nothing begins there."""
        place = began.place if done is None else search.place(done)
        if place is None:
            return False
        searched = began.searched + (0 if done is None else done.looked)
        self.cursor = began._replace(searched=searched, unread=unread, pack="", place=tuple(place))
        return True

    def answer(self, queues: int) -> FoundPage:
        """Return the page; ``queues``: how many are searched."""
        in_pack = len(self.jobs) if self.cursor.pack else 0
        searched = max(self.cursor.searched, in_pack)
        return FoundPage(
            jobs=tuple(self.jobs),
            ends=tuple(self.ends),
            searched=searched,
            total=max(self.cursor.total, searched),
            queues=queues,
            unread=self.cursor.unread,
            next=None if self.ended else self.cursor.text,
        )

    def _has_had(self, document: str, job: dict[str, Any]) -> bool:
        return document == self.cursor.pack and job["seq"] <= self.cursor.seq


def _row(queue: str, job: dict[str, Any]) -> FoundJobRow:
    return from_document(FoundJobRow, {**job, "queue": queue, "seq": None})


def _text(most: int) -> Any:
    return kept(
        f"a string of 1 to {most} characters",
        lambda value: isinstance(value, str) and 1 <= len(value) <= most and is_utf8(value),
    )


def _are_headers(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MOST_HEADERS
        and all(
            isinstance(text, str) and len(text) <= _LONGEST and "\0" not in text and is_utf8(text)
            for pair in value.items()
            for text in pair
        )
        and "" not in value
    )


_OPTIONS: Final = {
    "id": IDENTIFIER,
    **dict.fromkeys(("words", "text", "kind", "tenant", "group", "error", "queue"), _text(_LONGEST)),
    "headers": kept(f"a map of up to {_MOST_HEADERS} texts", _are_headers),
    "states": kept(
        f"an array of {', '.join(SHOWN_STATES)}",
        lambda value: isinstance(value, list | tuple) and all(state in SHOWN_STATES for state in value),
    ),
    "since": CHOICE["since"],
    "until": CHOICE["until"],
}
