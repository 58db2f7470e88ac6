"""Dead letters: listed, counted, redriven, discarded, chosen by why and when they died."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.rows import CountRow, DeadErrorRow, ErrorsRow, JobPage, ReasonRow, ReasonsRow
from sluicemq.protocol.rules import KIND, kept, number, whole
from sluicemq_broker.admin.jobs import job_page, listing, place_of
from sluicemq_broker.context import Context
from sluicemq_broker.job import State
from sluicemq_broker.queues import Census, Discard, Queues, Redrive, Task, Tasks
from sluicemq_broker.runtime import read_options
from sluicemq_broker.store import SAMPLE, DeadLetters, LatestError, latest_errors, type_of
from sluicemq_devices.hub import in_pieces

#: Jobs in one page of a list.
MOST_LISTED: Final = 200
_LAST_TIME: Final = 253_370_000_000


class DeadLetterAdmin:
    """The dead letters of all queues. Each method raises NotFound for an unknown queue."""

    def __init__(self, queues: Queues, census: Census, tasks: Tasks, context: Context) -> None:
        self._queues = queues
        self._census = census
        self._tasks = tasks
        self._clock = context.clock

    def page(
        self, queue: str, which: DeadLetters, limit: int, after: str | None, *, whole: bool = False
    ) -> JobPage:
        """Return some of these dead letters behind a cursor, the latest first; ``whole``: with all fields."""
        page, place = listing(self._queues, queue), place_of(after)
        return job_page(page.ended(queue, State.DEAD, which, limit, place, self._clock.now(), whole=whole))

    def count(self, queue: str, which: DeadLetters) -> CountRow:
        """Return how many these dead letters are."""
        known = self._census.dead(queue)
        count, exact = listing(self._queues, queue).count(queue, which, self._clock.now(), known)
        return CountRow(count=count, exact=exact)

    def reasons(self, queue: str, which: DeadLetters) -> ReasonsRow:
        """Return why the latest of these died, the most frequent reasons first."""
        found = listing(self._queues, queue).reasons(queue, which, self._clock.now())
        return ReasonsRow(reasons=tuple(ReasonRow(**row) for row in found))

    def errors(self, name: str | None, is_seen: Callable[[str], bool]) -> ErrorsRow:
        """Return the errors behind the latest dead letters, of one queue or of all that are seen.

        An error is a type and a place. Those of the 100 queues with the most dead letters are looked at.
        """
        if name is not None:
            self._queues.get(name)
        names = [name] if name is not None else [queue.name for queue in self._queues if is_seen(queue.name)]
        counted = {queue: self._census.dead(queue) for queue in names}
        dying = sorted(
            (queue for queue in names if counted[queue] != 0), key=lambda queue: -(counted[queue] or 1)
        )
        looked_at, now = dying[:100], self._clock.now()
        # Of each some, however many queues there are
        most = max(20, SAMPLE // max(1, len(looked_at)))
        found: list[LatestError] = []
        for database, some in self._queues.by_database(map(self._queues.get, looked_at)).items():
            found += latest_errors(database, some, most, now, most_ms=2000)
        return errors_row(found, most, counted)

    def about(self, queue: str, what: str, which: dict[str, Any]) -> CountRow | ReasonsRow | JobPage:
        """Answer a DEAD: the :meth:`count` of dead letters, their :meth:`reasons`, or a :meth:`page`."""
        if what not in _ASKED:
            raise BadFramesError(f"a DEAD asks for {', '.join(_ASKED)}, not {what[:32]!r}")
        paged = what in (wire.LETTERS, wire.WHOLE)
        read = read_options(which, _OF_PAGE if paged else _OF_DEAD, "a DEAD")
        limit, after = read.pop("limit", MOST_LISTED), read.pop("after", None)
        chosen = DeadLetters(**read)
        if paged:
            return self.page(queue, chosen, limit, after, whole=what == wire.WHOLE)
        return self.count(queue, chosen) if what == wire.COUNT else self.reasons(queue, chosen)

    def redrive(self, name: str, which: dict[str, Any], to: str | None) -> Task:
        """Make dead letters ready again, in their queue or in another."""
        return self._tasks.begin(Redrive.kind, name, to=to, **_chosen(which))

    def discard(self, name: str, which: dict[str, Any]) -> Task:
        """Remove dead letters, all or some."""
        return self._tasks.begin(Discard.kind, name, **_chosen(which))


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1000


#: The options that choose dead letters.
CHOICE: Final = {
    "ids": kept(
        f"an array of up to {wire.MOST_IDS} strings",
        lambda value: (
            isinstance(value, list)
            and len(value) <= wire.MOST_IDS
            and all(isinstance(item, str) for item in value)
        ),
    ),
    "reason": kept("a string, a part of the last error's reason", lambda value: isinstance(value, str)),
    "limit": whole(1, wire.MOST_REDRIVEN),
    "since": number(0, _LAST_TIME, "a time in Unix seconds, before the year 9999"),
    "until": number(0, _LAST_TIME, "a time in Unix seconds, before the year 9999"),
    "error": kept("a string, the type of the last error; ? for none", _is_short),
    "place": kept("a string, the function that raised the last error; ? for none", _is_short),
    "kind": KIND,
}
#: Those that choose dead letters which are only looked at.
_OF_DEAD: Final = {name: CHOICE[name] for name in wire.OF_DEAD}
_ASKED: Final = (wire.COUNT, wire.REASONS, wire.LETTERS, wire.WHOLE)
_OF_PAGE: Final = {
    **_OF_DEAD,
    "limit": whole(1, MOST_LISTED),
    "after": kept("a string, the next of the page before", lambda value: isinstance(value, str)),
}


def _chosen(which: dict[str, Any]) -> dict[str, Any]:
    return read_options(which, CHOICE, "a choice of dead letters")


def errors_row(found: Sequence[LatestError], most: int, counted: Mapping[str, int | None]) -> ErrorsRow:
    """Group errors, the latest first, of up to ``most`` dead letters of each queue; 50 are returned.

    ``counted``: about how many each queue has; it is known where fewer than ``most`` were found.
    """
    looked = Counter(letter.queue for letter in found)
    counted = {**counted, **{queue: number for queue, number in looked.items() if number < most}}
    weights = {queue: max(1.0, (counted.get(queue) or 0) / number) for queue, number in looked.items()}
    groups: dict[tuple[str, str], list[LatestError]] = defaultdict(list)
    for letter in in_pieces(found):
        groups[letter.type or type_of(letter.reason), letter.place].append(letter)
    rows = [_row(*about, these, weights) for about, these in groups.items()]
    rows.sort(key=lambda row: (-row.count, row.type, row.place))
    total = sum(max(counted.get(queue) or 0, number) for queue, number in looked.items())
    unseen = sum(number or 0 for queue, number in counted.items() if queue not in looked)
    return ErrorsRow(errors=tuple(rows[:50]), looked=len(found), dead=total + unseen)


def _row(kind: str, place: str, these: Sequence[LatestError], weights: Mapping[str, float]) -> DeadErrorRow:
    latest = these[0]
    return DeadErrorRow(
        type=kind,
        place=place,
        count=round(sum(weights[letter.queue] for letter in these)),
        exact=all(weights[letter.queue] == 1.0 for letter in these),
        reason=latest.reason,
        queue=latest.queue,
        job=latest.job,
        first_at=these[-1].at,
        last_at=latest.at,
        queues=_most(letter.queue for letter in these),
        kinds=_most(letter.kind for letter in these),
        workers=_most(letter.worker for letter in these),
        hosts=_most(letter.host for letter in these),
    )


def _most(names: Iterable[str]) -> tuple[str, ...]:
    """Return the most frequent of these names."""
    return tuple(name for name, _ in Counter(filter(None, names)).most_common(10))
