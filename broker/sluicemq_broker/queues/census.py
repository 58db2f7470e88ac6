"""Counts of each queue's jobs by state: counted in turn, and estimated between two counts.

Counting one queue takes MongoDB some milliseconds, a thousand queues some seconds. So counts are kept. A
request for one queue counts it. A request for all queues counts changed ones for :data:`QUESTION_TIME`
seconds, and returns the latest counts of the others. In the background each queue is counted again in turn,
which finds what other brokers do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import gevent
from gevent.event import AsyncResult

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.rows import QueueRow, RatesRow
from sluicemq_broker.context import Context
from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.queue import Counted, Queue
from sluicemq_broker.queues.attempts import attempt
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import COUNTED_EXACTLY, SHOWN_STATES, Inspector
from sluicemq_devices.hub import in_parts, in_pieces

#: Seconds of counting for one request for all queues.
QUESTION_TIME: Final = 0.1
_LOOK: Final = 0.25  # seconds between two checks whether MongoDB answers at all
#: Seconds of each poll for counting: queues counted before, and new ones.
_AGAIN, _FIRST = 0.05, 0.25
#: Queues that are counted together, while each has few jobs.
_TOGETHER: Final = 25
#: Seconds after which a queue is counted again: a changed one, and one at rest.
_CHANGED_AGE, _RESTING_AGE = 5.0, 60.0

_NO_JOBS: Final = dict.fromkeys(SHOWN_STATES, 0)


class Mark(NamedTuple):
    """Counters of a queue at this broker when a count of it began; ``at``: monotonic seconds."""

    at: float
    changes: int
    held: int
    delivered: int
    marks: tuple[int, int, int]


class Tally(NamedTuple):
    """Figures of one count of a queue, and the counters when it began.

    ``sampled``: states whose figures are estimates; ``oldest``: server's time since which the oldest ready
    job is due; ``error``: why there are no figures; ``surplus``: live jobs that estimates leave out, see
    :meth:`Census._keep`.
    """

    counts: dict[str, int]
    sampled: frozenset[str]
    oldest: float | None
    begun: Mark
    error: str = ""
    surplus: int = 0


class Census:
    """The counts of all queues of a broker.

    ``trusted()``: False while MongoDB is known not to answer. ``wait``: seconds for which a request waits.
    """

    def __init__(
        self,
        queues: Queues,
        context: Context,
        trusted: Callable[[], bool] = lambda: True,
        *,
        wait: float = 5.0,
    ) -> None:
        self._queues = queues
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._counters = context.counters
        self._trusted = trusted
        self._wait = wait
        self._tallies: dict[str, Tally] = {}

    def all(self) -> list[QueueRow]:
        """Return a row for each queue by name; as many changed ones as there is time for are counted now.

        Raises :class:`~sluicemq.UnavailableError` if MongoDB does not answer.
        """
        began = self._timer.now()
        self._wait_for(self._count_most_urgent)
        return self.rows(began)

    def one(self, name: str) -> QueueRow:
        """Return the row of one queue, counted now; raises NotFound, and Unavailable as :meth:`all` does."""
        queue, began = self._queues.get(name), self._timer.now()
        self._wait_for(lambda: self._count(queue))
        return self._row(queue, began)

    def rows(self, exact_since: float = math.inf) -> list[QueueRow]:
        """Return a row for each queue without asking MongoDB, with pauses for others: a thousand take 14 ms.

        Counts that began at ``exact_since`` or later are returned as they are, older ones as estimates.
        """
        queues = sorted(self._queues, key=lambda queue: queue.name)
        return [self._row(queue, exact_since) for queue in in_pieces(queues)]

    def ready(self) -> dict[str, int]:
        """Return about how many jobs of each queue wait for a worker, without asking MongoDB."""
        return {
            queue.name: self._carried_on(tally, queue)[0][State.READY]
            for queue in self._queues
            if (tally := self._tallies.get(queue.name))
        }

    def waiting(self, queue: Queue) -> tuple[int, float]:
        """Return how many jobs of a queue are ready, and how long the oldest had waited when counted."""
        tally = self._tallies.get(queue.name)
        if tally is None or tally.oldest is None:
            return 0, 0.0
        ready = self._carried_on(tally, queue)[0][State.READY]
        waited = self._age(tally.oldest) - (self._timer.now() - tally.begun.at)
        return (ready, max(0.0, waited)) if ready else (0, 0.0)

    def dead(self, name: str) -> int | None:
        """Return about how many dead letters a queue has, without asking MongoDB; None: not known."""
        tally = self._tallies.get(name)
        if tally is None or tally.error:
            return None
        return self._carried_on(tally, self._queues.get(name))[0][State.DEAD]

    def recount(self, queue: Queue) -> None:
        """Forget the count of a queue: administration has changed its jobs."""
        self._tallies.pop(queue.name, None)
        queue.capacity.recount()

    def count_bounded(self) -> None:
        """Count queues that can be full; called at the start."""
        for queue in self._queues:
            if queue.capacity.bounded:
                self._count(queue)

    def tick(self) -> None:
        """Count queues whose turn it is, for a small part of the time; called at each poll."""
        now = self._timer.now()
        known = {queue.name for queue in self._queues}
        self._tallies = {name: tally for name, tally in self._tallies.items() if name in known}
        first = [queue for queue in self._queues if queue.name not in self._tallies]
        due = [queue for queue in self._queues if queue.name in self._tallies and self._is_due(queue, now)]
        self._count_for(_FIRST, first)
        self._count_for(_AGAIN, sorted(due, key=lambda queue: self._tallies[queue.name].begun.at))

    # --------------------------------------------------------------- counting

    def _wait_for(self, count: Callable[[], None]) -> None:
        """Wait for a count; one that takes too long goes on, and is known at the next request."""
        if not self._trusted():
            raise UnavailableError("MongoDB does not answer: nothing can be counted")
        done: AsyncResult[None] = AsyncResult()
        gevent.spawn(_count_into, count, done)
        for _ in range(max(1, round(self._wait / _LOOK))):
            done.wait(_LOOK)
            if done.ready():
                done.get()
                return
            if not self._trusted():
                break
        raise UnavailableError("MongoDB has not answered: nothing can be counted")

    def _count_most_urgent(self) -> None:
        self._queues.discover()
        self._count_for(QUESTION_TIME, sorted(self._queues, key=self._urgency))

    def _urgency(self, queue: Queue) -> tuple[int, float]:
        tally = self._tallies.get(queue.name)
        if tally is None:
            return (0, 0.0)
        return (1 if queue.changes != tally.begun.changes else 2, tally.begun.at)

    def _is_due(self, queue: Queue, now: float) -> bool:
        tally = self._tallies[queue.name]
        changed = queue.changes != tally.begun.changes
        if queue.capacity.bounded and (changed or queue.capacity.outdated or self._owners.others > 0):
            return True  # other brokers fill it, too
        # At rest as well: MongoDB itself removes what was kept for a while.
        return now - tally.begun.at >= (_CHANGED_AGE if changed else _RESTING_AGE)

    def _count_for(self, seconds: float, queues: Sequence[Queue]) -> None:
        """Count queues for these seconds, some together; a count that has begun is finished."""
        end = self._timer.now() + seconds
        for some in in_parts(queues, _TOGETHER):
            if self._timer.now() >= end:
                return
            self._count_some(some, end)

    def _count_some(self, queues: Sequence[Queue], end: float) -> None:
        """Count queues with few jobs together; then the first of the others, and more until ``end``."""
        alike = [queue for queue in queues if not queue.capacity.bounded]
        begun = {queue.name: self._stands(queue) for queue in alike}
        found: dict[str, dict[str, Any]] = {}
        for database, names in self._queues.by_database(alike).items():
            found |= Inspector(database).small_counts(names, self._clock.now())
        for queue in queues:
            if queue.name in found:
                self._keep(queue, found[queue.name], begun[queue.name])
        for queue in queues:
            if queue.name not in found:
                self._count(queue)
                if self._timer.now() >= end:
                    return

    def _count(self, queue: Queue) -> None:
        """Count one queue; if MongoDB refuses, its row says why."""
        begun = self._stands(queue)

        def count() -> None:
            self._keep(queue, self._counted(queue), begun)

        def failed(error: Exception) -> None:
            text = f"queue {queue.name!r} can't be counted: {type(error).__name__}: {error}"
            self._counters.notice(Count.UNCOUNTED, text)
            self._tallies[queue.name] = Tally(_NO_JOBS, frozenset(SHOWN_STATES), None, begun, text)

        attempt(count, failed)

    def _stands(self, queue: Queue) -> Mark:
        """Return the queue's own counters, right before it is counted."""
        delivered = queue.counters.values[Count.DELIVERED]
        return Mark(self._timer.now(), queue.changes, queue.held, delivered, _marks(queue))

    def _keep(self, queue: Queue, counts: dict[str, Any], begun: Mark) -> None:
        """Keep a count that has ended just now.

        A job that comes, moves or goes during the count is in it, or isn't, or is in it twice. Estimates add
        it once more, as the counters have changed since ``begun``. So a broker that alone uses the queue
        estimates from the former count, as far as such jobs explain the difference::

            1 job, counted; 199 are pushed during the next count, which finds 200: surplus 199
            estimate afterwards: 200 counted - 199 surplus + 199 pushed since the count began = 200

        Without a former count it supposes that the queue was empty when this broker started.
        """
        tally, former = _tally(counts, begun), self._tallies.get(queue.name)
        if former is None or former.error:
            former = Tally(_NO_JOBS, frozenset(), None, Mark(0.0, 0, 0, 0, (0, 0, 0)))
        if not self._owners.others:
            doubtful = _changing(queue, begun)
            difference = _live(tally, begun.marks) - _live(former, begun.marks)
            tally = tally._replace(surplus=max(-doubtful, min(doubtful, difference)))
        self._tallies[queue.name] = tally

    def _counted(self, queue: Queue) -> dict[str, Any]:
        queue.store.prepare()
        flow = queue.capacity.flow()
        inspector = Inspector(self._queues.database_of(queue))
        counts = inspector.counts(queue.name, self._clock.now())
        if queue.capacity.bounded:
            size = inspector.size(queue.name) if queue.capacity.measured else 0
            documents = sum(counts[state] for state in SHOWN_STATES)
            waiting = documents - sum(counts[state] for state in (State.RESERVED, State.DONE, State.DEAD))
            now, shared = self._timer.now(), self._owners.others > 0
            queue.capacity.counted(Counted(waiting, documents, size), flow, now, shared=shared)
        return counts

    # ------------------------------------------------------------------- rows

    def _row(self, queue: Queue, exact_since: float) -> QueueRow:
        tally = self._tallies.get(queue.name)
        if tally is None:
            counts, estimates, oldest, ago = _NO_JOBS, frozenset(SHOWN_STATES), None, None
        else:
            fresh = tally.begun.at >= exact_since or tally.error
            counts, estimates = (tally.counts, tally.sampled) if fresh else self._carried_on(tally, queue)
            oldest = tally.oldest if counts[State.READY] else None
            ago = round(self._timer.now() - tally.begun.at, 3)
        return QueueRow(
            name=queue.name,
            **counts,
            exact=not estimates,
            estimates=tuple(sorted(estimates)),
            counted_ago=ago,
            oldest_ready_age=None if oldest is None else self._age(oldest),
            workers=queue.workers,
            in_flight=queue.in_flight,
            rates=RatesRow(**queue.counters.rates(self._timer.now())),
            paused=tuple(sorted(queue.paused)),
            permits=queue.permits.held,
            held_back=len(queue.scheduler.held_back),
            full=int(queue.capacity.full),
            error=(tally and tally.error) or None,
        )

    def _age(self, since: float) -> float:
        return round(max(0.0, self._clock.now() - since), 3)

    def _carried_on(self, tally: Tally, queue: Queue) -> tuple[dict[str, int], frozenset[str]]:
        """Return the counts by now, as far as this broker knows, and the states with estimates."""
        if queue.changes == tally.begun.changes and not self._owners.others:
            return tally.counts, tally.sampled | _moved_by_time(tally.counts)
        return _estimated(tally, queue), frozenset(SHOWN_STATES)


def _count_into(count: Callable[[], None], done: AsyncResult[None]) -> None:
    try:
        count()
        done.set(None)
    except Exception as error:  # noqa: BLE001 - raised in the request
        done.set_exception(error)


def _tally(counts: dict[str, Any], begun: Mark) -> Tally:
    """Return the tally of a count; states with too many jobs to count are estimates."""
    exact, oldest = counts.pop("exact"), counts.pop("oldest")
    many = () if exact else (count for count in counts if counts[count] >= COUNTED_EXACTLY)
    return Tally(counts, frozenset(many), oldest, begun)


def _marks(queue: Queue) -> tuple[int, int, int]:
    """Return how many jobs have come, have gone, and became dead letters."""
    values = queue.counters.values
    gone = values[Count.COMMITTED] + values[Count.FORWARDED] + values[Count.EXPIRED]
    return values[Count.PUSHED], gone, values[Count.DEAD]


def _changing(queue: Queue, begun: Mark) -> int:
    """Return how many jobs may have come, moved or gone since a count began, at most."""
    reserved = max(0, queue.scheduler.reserved - begun.held)  # with claims that MongoDB may have carried out
    moved = queue.counters.values[Count.DELIVERED] - begun.delivered + reserved
    known = sum(_marks(queue)) - sum(begun.marks)
    return known + moved + queue.capacity.flow().storing + queue.settling.under_way


def _live(tally: Tally, marks: tuple[int, int, int]) -> int:
    """Return how many jobs were neither done nor dead when the counters were at ``marks``."""
    pushed, gone, died = (now - then for now, then in zip(marks, tally.begun.marks, strict=True))
    counted = sum(tally.counts[state] for state in (State.READY, SCHEDULED, State.WAITING, State.RESERVED))
    return max(0, counted - tally.surplus + pushed - gone - died)


def _estimated(tally: Tally, queue: Queue) -> dict[str, int]:
    """Return a count with what has happened here since; delayed and waiting jobs keep their states."""
    counts, marks = tally.counts, _marks(queue)
    live, died = _live(tally, marks), marks[2] - tally.begun.marks[2]
    reserved = min(live, max(0, counts[State.RESERVED] + queue.held - tally.begun.held))
    scheduled = min(live - reserved, counts[SCHEDULED])
    waiting = min(live - reserved - scheduled, counts[State.WAITING])
    return {
        State.READY: live - reserved - scheduled - waiting,
        SCHEDULED: scheduled,
        State.WAITING: waiting,
        State.RESERVED: reserved,
        State.DONE: counts[State.DONE],
        State.DEAD: counts[State.DEAD] + died,
    }


def _moved_by_time(counts: dict[str, int]) -> frozenset[str]:
    """Return the states whose figures change by time: jobs become due, kept ones are removed."""
    due = (State.READY, SCHEDULED) if counts[SCHEDULED] else ()
    return frozenset((*due, *(state for state in (State.DONE, State.DEAD) if counts[state])))
