"""The history of every minute: this broker's counts are added to those of all brokers.

At every poll the counts since the last one are noted for their minute. Every :data:`FLUSH` seconds all notes
are written, with one statement for fifty queues. The history lacks what a killed broker has counted since its
last flush; nothing else depends on it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.rows import HistoryRow, PointRow
from sluicemq_broker.context import Context
from sluicemq_broker.job import State
from sluicemq_broker.queues import Census, Queues
from sluicemq_broker.runtime import ALL, BOUNDS, Subjects, Timing
from sluicemq_broker.store import DAY, Documents, HistoryStore, HistorySubject, MinuteCounts, day_of
from sluicemq_devices.hub import in_pieces, let_others_run

#: Seconds between two writes.
FLUSH: Final = 10.0
#: Days that are shown by hours, and by days.
_BY_HOUR, _BY_DAY = 30, 366
QUEUE: Final = "queue"
KIND: Final = "kind"
BROKER: Final = "broker"
SPANS: Final = ("minute", "hour", "day", "month")

#: Histograms that are kept for each minute, and the first character of their counts: ``q7`` counts the
#: durations up to ``BOUNDS[7]``. A minute of a queue has about ten of them, so their names are short.
LATENCIES: Final = {Timing.TIME_IN_QUEUE: "q", Timing.TIME_AT_WORKER: "w"}
_LATENCY_COUNTS: Final = {
    timing: tuple(f"{letter}{bound}" for bound in range(len(BOUNDS) + 1))
    for timing, letter in LATENCIES.items()
}
_HIDDEN: Final = frozenset(name for names in _LATENCY_COUNTS.values() for name in names)

_Where = tuple[str, HistorySubject]  # name of the database, and subject


class History:
    """Writes and reads the counts of each minute. ``host``: the name under which this broker counts."""

    def __init__(
        self,
        queues: Queues,
        census: Census,
        context: Context,
        subjects: Sequence[Subjects],
        database: Callable[[str], Documents],
        own: str,
        host: str,
        random: Random | None = None,
    ) -> None:
        self._queues = queues
        self._subjects = subjects
        self._broker = Subjects(BROKER, self._of_broker, lambda _name: own)
        self._census = census
        self._clock = context.clock
        self._timer = context.timer
        self._counters = context.counters
        self._database = database
        self._databases = {*queues.databases, own}
        self._host = host.replace("/", "_")
        self._random = random or Random()  # noqa: S311 - when a document is made ahead is no secret
        self._writer = secrets.token_hex(4)
        self._number = 0
        self._known: dict[_Where, Counter[str]] = {}
        self._timed: dict[str, Counter[str]] = {}  # by queue; as many as have histograms
        self._waiting: dict[tuple[_Where, int], tuple[Counter[str], dict[str, int]]] = {}
        #: By database: what was sent under the number and has no answer yet.
        self._sent: dict[str, list[MinuteCounts]] = {}
        self.minute = int(self._clock.now() // 60)
        self._flushed = self._timer.now()
        self._ahead: dict[_Where, datetime] = {}

    # ------------------------------------------------------------------ write

    def prepare(self) -> None:
        """Make the collections' indexes."""
        for database in self._databases:
            self._store(database).prepare()

    def tick(self) -> None:
        """Note the counts of a minute that is over, and write when it is time; called at every poll."""
        minute = int(self._clock.now() // 60)
        due = self._timer.now() - self._flushed >= FLUSH
        if minute != self.minute or due:
            self._take(self.minute)
            self.minute = minute
        if due:
            self.flush()

    def flush(self) -> None:
        """Write all counts; those that can't be written now are kept for the next time."""
        self._flushed = self._timer.now()
        if not self._sent:
            self._take(self.minute)
            self._number += 1
            self._sent = self._taken_out()
        for database in list(self._sent):
            self._store(database).add(self._writer, self._number, self._sent[database])
            self._make_ahead(database, {row.subject for row in self._sent.pop(database)})

    def close(self) -> None:
        """Write all counts: the broker stops."""
        if self._sent:
            self.flush()
        self.flush()

    def roll_up(self) -> None:
        """Add days that are over to months, remove old minutes and too many days; called each half hour."""
        for database in self._databases:
            while self._store(database).roll_up(day_of(self._clock.now())):
                let_others_run()
            self._store(database).trim()

    def _take(self, minute: int) -> None:
        """Note the counts since the last call for this minute; forget subjects that are gone."""
        there: set[_Where] = set()
        ready = self._census.ready()
        everywhere = sum(ready.values())
        timed = self._newly_timed()
        for where, values in self._counted():
            there.add(where)
            added = _risen(self._known.get(where, Counter()), values)
            kind, name = where[1]
            times = timed.get(name if kind == QUEUE else ALL) if kind in (QUEUE, BROKER) else None
            backlog = everywhere if name == ALL else ready.get(name, 0) if kind == QUEUE else 0
            most = {State.READY.value: backlog} if backlog else {}
            if added:
                self._known[where] = Counter(values)
            if added or most or times:
                self._note(where, minute, added + (times or Counter()), most)
        self._known = {where: value for where, value in self._known.items() if where in there}
        self._ahead = {where: day for where, day in self._ahead.items() if where in there}

    def _newly_timed(self) -> dict[str, Counter[str]]:
        """Return by queue how many durations came since the last call, by bound; under :data:`ALL` all."""
        found: dict[str, Counter[str]] = {ALL: Counter()}
        for queue, histograms in in_pieces(list(self._counters.timings_by_queue.items())):
            counts = {
                name: count
                for timing, names in _LATENCY_COUNTS.items()
                for name, count in zip(names, histograms[timing].counts, strict=True)
                if count
            }
            risen = _risen(self._timed.get(queue, Counter()), counts)
            if risen:
                self._timed[queue] = Counter(counts)
                found[ALL] += risen
                found.setdefault(queue, risen)
        return found

    def _note(self, where: _Where, minute: int, added: Counter[str], most: Mapping[str, int]) -> None:
        # Minutes of all subjects that wait while MongoDB is away; further counts are added to the last
        # minute.
        if len(self._waiting) >= 50_000:
            minute = max((m for (place, m) in self._waiting if place == where), default=minute)
        sums, highest = self._waiting.setdefault((where, minute), (Counter(), {}))
        sums.update(added)
        for name, count in most.items():
            highest[name] = max(highest.get(name, 0), count)

    def _kinds(self) -> dict[str, Subjects]:
        return {subject.kind: subject for subject in (self._subjects[0], self._broker, *self._subjects[1:])}

    def _counted(self) -> Iterator[tuple[_Where, Mapping[str, int]]]:
        for kind, subject in self._kinds().items():
            for name, values in subject.counters():
                yield (subject.database(name), HistorySubject(kind, name)), values

    def _of_broker(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        return ((name, self._counters.values) for name in (ALL, self._host))

    def _taken_out(self) -> dict[str, list[MinuteCounts]]:
        out: dict[str, list[MinuteCounts]] = {}
        for ((database, subject), minute), (added, most) in self._waiting.items():
            out.setdefault(database, []).append(MinuteCounts(subject, minute, added, most))
        self._waiting = {}
        return out

    def _make_ahead(self, database: str, subjects: set[HistorySubject]) -> None:
        """Make tomorrow's documents of these subjects, at random times before midnight.

        So midnight brings no burst of new documents. The chance rises with the time: a queue in use all day
        has its document early, one first used in the evening still before midnight.
        """
        now = self._clock.now()
        tomorrow = day_of(now + DAY)
        # The expected number of draws until midnight is four
        chance = 4 * FLUSH / max(FLUSH, DAY - now % DAY)
        for subject in subjects:
            where = (database, subject)
            if self._ahead.get(where) != tomorrow and self._random.random() < chance:
                self._store(database).make(subject, tomorrow)
                self._ahead[where] = tomorrow
                let_others_run()

    # ------------------------------------------------------------------- read

    def read(self, kind: str, name: str, day: str | None, span: str) -> HistoryRow:
        """Return the history of one subject.

        ``span``: each ``minute`` of that ``day`` (by default today), each ``hour`` of the 30 days that end
        with it, each ``day`` of the 366, each ``month``. Raises BadFrames for other arguments.
        """
        last = _read_day(day, self._clock.now())
        kinds = self._kinds()
        if kind not in kinds or span not in SPANS:
            raise BadFramesError(f"history is of a {' or '.join(kinds)}, by {', '.join(SPANS)}")
        subject = HistorySubject(kind, name)
        store = self.where(kind, name)
        match span:
            case "minute":
                first, points = last, store.minutes(subject, last)
            case "hour":
                first = last - timedelta(days=_BY_HOUR - 1)
                points = store.hours(subject, first, last)
            case "day":
                first = last - timedelta(days=_BY_DAY - 1)
                points = store.days(subject, first, last)
            case _:
                points = store.months(subject)
                first = min(points, default=last)
        return HistoryRow(
            subject=kind,
            name=name,
            span=span,
            since=_seconds(first),
            until=min(_seconds(last) + DAY, self._clock.now()),
            total=_named(_sum(points.values())),
            points=tuple(
                PointRow(at=_seconds(at), counted=_named(counted)) for at, counted in sorted(points.items())
            ),
        )

    def where(self, kind: str, name: str) -> HistoryStore:
        """Return the store with a subject's history; raises BadQueue or BadStream for a bad name."""
        return self._store(self._kinds()[kind].database(name))

    def stores_of(self, queues: Sequence[str]) -> Iterator[tuple[HistoryStore, list[HistorySubject]]]:
        """Yield the stores with the histories of these queues, with the subjects in each."""
        places: dict[str, list[HistorySubject]] = {}
        for name in queues:
            places.setdefault(self._kinds()[QUEUE].database(name), []).append(HistorySubject(QUEUE, name))
        for database, subjects in places.items():
            yield self._store(database), subjects

    def _store(self, database: str) -> HistoryStore:
        return HistoryStore(self._database(database), self._queues.config.broker.history_retention)


def _risen(before: Counter[str], values: Mapping[str, int]) -> Counter[str]:
    """Return the counts since ``before``; all of them if the counters began again with their queue."""
    if any(values.get(name, 0) < count for name, count in before.items()):
        before = Counter()
    return Counter({name: count - before[name] for name, count in values.items() if count > before[name]})


def latency_counts(timing: Timing, counted: Mapping[str, int]) -> list[int]:
    """Return how many durations of a minute, or of more, came into each bound."""
    return [counted.get(name, 0) for name in _LATENCY_COUNTS[timing]]


def _named(counted: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counted.items() if name not in _HIDDEN}


def _sum(points: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counted in points:
        highest = max(total[State.READY], counted.get(State.READY, 0))
        total.update(counted)
        total[State.READY] = highest
    return {name: count for name, count in total.items() if count}


def _read_day(day: str | None, now: float) -> datetime:
    if day is None:
        return day_of(now)
    try:
        return datetime.strptime(day, "%Y-%m-%d")  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise BadFramesError(f"{day[:32]!r} is no day as in 2026-01-31") from None


def _seconds(when: datetime) -> float:
    return when.replace(tzinfo=UTC).timestamp()
