"""Incidents: what happened to queues and brokers that is out of the ordinary.

At every poll this broker looks at what it knows: how many jobs each queue got, how many died, how long jobs
wait, whether MongoDB answers. An incident begins when something unusual is seen, goes on while it is seen
again, and is over after :data:`GAP` seconds without. Every :data:`FLUSH` seconds changed incidents are
written. Incidents that several brokers saw are shown as one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq.protocol.rows import IncidentRow, IncidentsRow
from sluicemq_broker.context import Context
from sluicemq_broker.history.floods import FloodDetector
from sluicemq_broker.history.series import SPANS
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Census, Difference, Queues
from sluicemq_broker.runtime import DEAD_LETTERS, NEARLY_USED, Count, Kept
from sluicemq_broker.store import ALL_QUEUES, DeadLetters, Documents, Incident, IncidentStore, Listing, Seen
from sluicemq_devices.hub import in_pieces

#: Seconds between two writes; and those after which a repetition is another incident.
FLUSH: Final = 10.0
GAP: Final = 600.0
#: Seconds for which a job may wait before that is an incident.
LONG: Final = 300.0
#: Incidents that are read, and returned, at once.
_MOST_READ, MOST_TOLD = 1000, 100


class IncidentKind(StrEnum):
    """Kinds of incidents: of a broker, of all queues, or of one."""

    STARTED = "started"
    STOPPED = "stopped"
    DIED = "died"
    LEASE_LOST = Count.LEASE_LOST.value
    STORE_AWAY = "store_away"
    CLOCK_SET = "clock_set"
    RECLAIMED = "reclaimed"
    LOST = "lost"
    FLOOD = "flood"
    BACKLOG = "backlog"
    DEAD_LETTERS = "dead_letters"
    DEAD_REMOVED = Count.DEAD_REMOVED.value
    REFUSED = "refused"
    TIMED_OUT = Count.TIMED_OUT.value
    STUCK = "stuck"
    PAUSED = "paused"
    RESUMED = "resumed"
    DISAGREE = "disagree"
    BOUND_NEAR = "bound_near"


#: Counters of which each rise is an incident: of a queue, and of the broker.
_OF_QUEUE: Final = {
    Count.DEAD: IncidentKind.DEAD_LETTERS,
    Count.DEAD_REMOVED: IncidentKind.DEAD_REMOVED,
    Count.REFUSED: IncidentKind.REFUSED,
    Count.TIMED_OUT: IncidentKind.TIMED_OUT,
    Count.OVER_LIMIT: IncidentKind.TIMED_OUT,
    Count.POPPED_LOST: IncidentKind.LOST,
    Count.WORKERS_STUCK: IncidentKind.STUCK,
}
_OF_BROKER: Final = {Count.RECLAIMED: IncidentKind.RECLAIMED, Count.JOBS_REFUSED: IncidentKind.LOST}
#: Kinds that concern one broker, so that two brokers have two incidents.
_PERSONAL: Final = frozenset(
    {IncidentKind.STARTED, IncidentKind.STOPPED, IncidentKind.DIED, IncidentKind.LEASE_LOST}
)
#: Figures of several brokers that are added; of other figures the highest is shown, of texts the latest.
_SUMMED: Final = frozenset({"count", Count.PUSHED.value, Count.COMMITTED.value})

_Key = tuple[IncidentKind, str, str]


class Incidents:
    """Notes and writes the incidents at this broker, and reads those of all brokers.

    ``name``: this broker's; ``own``: the database with the incidents. ``differences()``: between brokers.
    ``kept``: what is kept, as it was looked at last.
    """

    def __init__(
        self,
        queues: Queues,
        census: Census,
        context: Context,
        database: Callable[[str], Documents],
        own: str,
        name: str,
        differences: Callable[[], Iterable[Difference]] = tuple,
        kept: Sequence[Kept] = (),
    ) -> None:
        self._kept = kept
        self._differences = differences
        self._queues = queues
        self._census = census
        self._context = context
        self._clock = context.clock
        self._counters = context.counters
        self._database = database
        self._own = own
        self._name = name
        self._writer = secrets.token_hex(4)
        self._known = {count: self._counters.values[count] for count in _OF_BROKER}
        self._watched: dict[str, _Watched] = {}
        self._open: dict[_Key, Incident] = {}
        self._changed: dict[tuple[_Key, float], Incident] = {}  # not written yet
        self._of_others: list[Incident] = []  # that go on, or did a moment ago
        self._flushed = context.timer.now()
        self._there = False

    # ------------------------------------------------------------------ notice

    def prepare(self) -> None:
        """Make the indexes, and note that this broker has started."""
        self._store.prepare()
        self._there = True
        self.note(IncidentKind.STARTED)

    def tick(self) -> None:
        """Look for incidents, and write when it is time; called at every poll."""
        now = self._clock.now()
        self._open = {key: incident for key, incident in self._open.items() if now - incident.until < GAP}
        self._look_at_broker()
        self._look_at_differences()
        self._look_at_bounds()
        self._watched = {queue.name: self._watch(queue) for queue in self._queues}
        for watched in in_pieces(list(self._watched.values())):
            watched.note_new(now)
        if self._context.timer.now() - self._flushed >= FLUSH:
            self.flush()

    def store_returned(self, seconds: float) -> None:
        """Note that MongoDB answers again, after these seconds."""
        self.note(IncidentKind.STORE_AWAY, since=self._clock.now() - seconds)

    def clock_set(self, seconds: float) -> None:
        """Note that MongoDB's clock was set by these seconds; negative: back."""
        self.note(IncidentKind.CLOCK_SET, figures={"seconds": round(seconds, 1)})

    def lease_lost(self) -> None:
        """Note that another broker has declared this one dead."""
        self.note(IncidentKind.LEASE_LOST)

    def found_dead(self, broker: Seen) -> None:
        """Note that another broker has died, after its last heartbeat."""
        self.note(IncidentKind.DIED, since=broker.seen, broker=broker.name)

    def note(
        self,
        kind: IncidentKind,
        queue: str = "",
        figures: Mapping[str, Any] | None = None,
        *,
        since: float | None = None,
        broker: str = "",
    ) -> Incident:
        """Note an incident now, or since then; figures are added to one that goes on."""
        key, now = (kind, queue, broker or self._name), self._clock.now()
        new = Incident(kind, queue, key[2], now if since is None else since, now, figures or {})
        before = self._open.get(key)
        if before is not None:
            new = _together(before, new)
        self._open[key] = self._changed[key, new.at] = new
        return new

    def flush(self) -> None:
        """Write changed incidents; those that can't be written now are kept for the next time."""
        self._flushed = self._context.timer.now()
        self._find_reasons()
        sent = dict(self._changed)
        self._store.write(self._writer, sent.values())
        for key, incident in sent.items():
            if self._changed[key].until == incident.until:  # else it went on meanwhile
                del self._changed[key]
        if self._context.owners.others:
            now = self._clock.now()
            self._of_others = self._store.between(now - GAP, now, _MOST_READ)

    def trim(self) -> None:
        """Remove the oldest incidents of too many; called every half hour."""
        self._store.trim()

    def close(self) -> None:
        """Note that the broker stops, and write what is left; nothing if it has not started."""
        if not self._there:
            return
        self.note(IncidentKind.STOPPED)
        self.flush()

    def _look_at_broker(self) -> None:
        for figure, kind in _OF_BROKER.items():
            count = self._counters.values[figure]
            if count > self._known[figure]:
                self.note(kind, figures={"count": count - self._known[figure]})
            self._known[figure] = count

    def _look_at_differences(self) -> None:
        """Note in which settings brokers differ: one incident for each queue, of the first few."""
        said: dict[str, list[str]] = {}
        for difference in self._differences():
            text = f"of all queues, {difference}" if difference.queue == ALL_QUEUES else str(difference)
            said.setdefault(difference.queue.removeprefix(ALL_QUEUES), []).append(text)
        self._note_of_queues(IncidentKind.DISAGREE, said)

    def _look_at_bounds(self) -> None:
        """Note what is kept up to almost its bound: one incident for each queue, one for all else."""
        said: dict[str, list[str]] = {}
        for incident in self._kept:
            if incident.used is not None and incident.used >= NEARLY_USED:
                queue = incident.name if incident.kind == DEAD_LETTERS else ""
                text = f"{incident.kind} of {incident.name}: {incident.used:.0%} of {incident.bound}"
                said.setdefault(queue, []).append(text)
        self._note_of_queues(IncidentKind.BOUND_NEAR, said)

    def _note_of_queues(self, kind: IncidentKind, said: dict[str, list[str]]) -> None:
        """Note something about the first queues, not too long for each: a mistake may concern all of them."""
        for queue, texts in islice(said.items(), 50):
            self.note(kind, queue, {"said": "; ".join(texts)[:1000]})

    def _watch(self, queue: Queue) -> _Watched:
        watched = self._watched.get(queue.name)
        if watched is None or watched.queue is not queue:  # or a queue of that name was made again
            return _Watched(self, self._census, queue)
        return watched

    def _find_reasons(self) -> None:
        """Add to changed incidents of dead letters why the latest one died."""
        for (key, at), incident in list(self._changed.items()):
            if incident.kind == IncidentKind.DEAD_LETTERS:
                reason = self._latest_reason(incident.queue)
                changed = self._changed[key, at]  # it may have gone on meanwhile
                changed = changed._replace(figures={**changed.figures, "reason": reason})
                self._open[key] = self._changed[key, at] = changed

    def _latest_reason(self, name: str) -> str:
        """Return why the latest dead letter died; empty if that is not known."""
        with suppress(SluiceError):
            queue = self._queues.get(name)
            queue.store.prepare()
            listing = Listing(self._queues.database_of(queue))
            page = listing.ended(name, State.DEAD, DeadLetters(), 1, None, self._clock.now())
            errors = page.jobs[0].get("errors") if page.jobs else None
            return str(errors[-1]["reason"])[:200] if errors else ""
        return ""

    @property
    def _store(self) -> IncidentStore:
        return IncidentStore(self._database(self._own), self._queues.config.broker.incident_retention)

    # ------------------------------------------------------------------- read

    def read(self, span: str, queue: str | None = None) -> IncidentsRow:
        """Return the incidents of the last ``hour``, ``day`` or ``month``, the latest first.

        With ``queue``: those of this queue, and those of all queues. Raises BadFrames.
        """
        if span not in SPANS:
            raise BadFramesError(f"incidents are of an {', a '.join(SPANS)}")
        until = self._clock.now()
        since = until - SPANS[span].steps * SPANS[span].step
        found = [*self._store.between(since, until, _MOST_READ), *self._changed.values()]
        these = [incident for incident in merged(found) if queue is None or incident.queue in ("", queue)]
        return IncidentsRow(since=since, until=until, incidents=tuple(these[:MOST_TOLD]))

    def dying(self) -> dict[str, int]:
        """Return how many jobs of each queue became dead letters in the last minutes; no look in MongoDB."""
        now = self._clock.now()
        found = [incident for incident in self._of_others if incident.broker != self._name]
        found += self._open.values()
        counts: dict[str, int] = {}
        for incident in found:
            if incident.kind == IncidentKind.DEAD_LETTERS and now - incident.until < GAP:
                counts[incident.queue] = counts.get(incident.queue, 0) + int(incident.figures.get("count", 0))
        return counts


_KINDS: Final = frozenset(IncidentKind)


def merged(incidents: Iterable[Incident]) -> list[IncidentRow]:
    """Return incidents with those that several brokers saw as one; the latest beginning first."""
    latest: dict[_Key, Incident] = {}
    brokers: dict[_Key, set[str]] = {}
    done: list[IncidentRow] = []
    for incident in _each_once(incidents):
        if incident.kind not in _KINDS:
            continue  # of a later version
        kind = IncidentKind(incident.kind)
        key = (kind, incident.queue, incident.broker if kind in _PERSONAL else "")
        before = latest.get(key)
        if before is not None and incident.at - before.until < GAP and kind not in _PERSONAL:
            latest[key] = _together(before, incident)
            brokers[key].add(incident.broker)
            continue
        if before is not None:
            done.append(_as_row(before, brokers[key]))
        latest[key], brokers[key] = incident, {incident.broker}
    done += [_as_row(incident, brokers[key]) for key, incident in latest.items()]
    return sorted(done, key=lambda incident: incident.at, reverse=True)


def _each_once(incidents: Iterable[Incident]) -> list[Incident]:
    """Return incidents by their beginning; of one that was written and went on, the later form."""
    once: dict[tuple[str, str, str, int], Incident] = {}
    for incident in incidents:
        once[incident.kind, incident.queue, incident.broker, int(incident.at * 1000)] = incident
    return sorted(once.values(), key=lambda incident: incident.at)


def _together(one: Incident, other: Incident) -> Incident:
    figures = dict(one.figures)
    for name, value in other.figures.items():
        before = figures.get(name)
        if before is None or isinstance(value, str) or isinstance(before, str):
            figures[name] = value
        elif name == "usual":  # as it was before it began
            continue
        else:
            figures[name] = before + value if name in _SUMMED else max(before, value)
    return one._replace(at=min(one.at, other.at), until=max(one.until, other.until), figures=figures)


def _as_row(incident: Incident, brokers: set[str]) -> IncidentRow:
    return IncidentRow(
        kind=str(incident.kind),
        queue=incident.queue,
        at=incident.at,
        until=incident.until,
        brokers=tuple(sorted(brokers)),
        figures=dict(incident.figures),
    )


class _Watched:
    """One queue, as it was at the last look."""

    def __init__(self, incidents: Incidents, census: Census, queue: Queue) -> None:
        self.queue = queue
        self._incidents = incidents
        self._census = census
        self._changes = -1
        # Counts before the first look are new, too
        self._values = dict.fromkeys((*_OF_QUEUE, Count.PUSHED, Count.COMMITTED), 0)
        self._paused = frozenset(queue.paused)
        self._pushes = FloodDetector()

    def note_new(self, now: float) -> None:
        """Note incidents since the last look."""
        queue = self.queue
        if queue.paused != self._paused:
            self._look_at_pauses(frozenset(queue.paused))
        risen: Mapping[Count, int] = {}
        if queue.changes != self._changes:  # most queues are at rest, and there may be a thousand
            self._changes, risen = queue.changes, self._risen()
            self._look_at_counters(risen, int(now // 60))
        ready, age = self._census.waiting(queue)
        if age > LONG:
            moved = {name.value: risen.get(name, 0) for name in (Count.PUSHED, Count.COMMITTED)}
            figures = {State.READY.value: ready, "longest": round(age, 1), **moved}
            self._incidents.note(IncidentKind.BACKLOG, queue.name, figures, since=now - age)

    def _look_at_counters(self, risen: Mapping[Count, int], minute: int) -> None:
        for figure, kind in _OF_QUEUE.items():
            if figure in risen:
                said = {"said": self.queue.last_stuck} if kind is IncidentKind.STUCK else {}
                self._incidents.note(kind, self.queue.name, {"count": risen[figure], **said})
        flood = self._pushes.add(minute, risen.get(Count.PUSHED, 0))
        if flood:
            figures = {Count.PUSHED.value: flood.pushed, "usual": flood.usual}
            self._incidents.note(IncidentKind.FLOOD, self.queue.name, figures)

    def _risen(self) -> dict[Count, int]:
        values, before = self.queue.counters.values, self._values
        risen = {name: values[name] - count for name, count in before.items() if values[name] > count}
        self._values = {name: values[name] for name in before}
        return risen

    def _look_at_pauses(self, paused: frozenset[str]) -> None:
        for what in paused - self._paused:
            self._incidents.note(IncidentKind.PAUSED, self.queue.name, {"what": what})
        for what in self._paused - paused:
            self._incidents.note(IncidentKind.RESUMED, self.queue.name, {"what": what})
        self._paused = paused
