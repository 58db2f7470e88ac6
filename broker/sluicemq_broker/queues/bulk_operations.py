"""Operations on many jobs of a queue, page by page; :mod:`tasks` runs them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, ClassVar, Final

from sluicemq.protocol.errors import BadQueueError, SluiceError
from sluicemq_broker.context import Context
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.queues.removals import Removal
from sluicemq_broker.queues.retention import DeadBounds
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import DeadLetters, Redriven, Redrives, Removals, Unclear

#: Jobs in a page, at most.
PAGE: Final = 500

Pages = Generator[int, None, None]


class BulkOperation:
    """One operation on a queue; ``now``: the server's time when it was requested; later jobs are spared.

    ``resumes``: running it again goes on where it was left, also after another broker's death.
    ``state``: the state of the jobs that it changes; None: several. ``done``: jobs so far, with former runs.
    ``looked``: dead letters that this run has looked at. ``page``: jobs in the next page, at most.
    """

    kind: ClassVar[str]
    resumes: ClassVar[bool]
    state: str | None = None

    def __init__(self, queues: Queues, context: Context, queue: Queue, now: float) -> None:
        queue.store.prepare()
        self.queue = queue
        self.now = now
        self.done = 0
        self.looked = 0
        self.page = PAGE
        self._queues = queues
        self._context = context
        self._counters = context.counters
        self._database = queues.database_of(queue)
        self._removals = Removals(self._database, FailedParents(queues), context.counters.notice)

    def admit(self) -> None:
        """Raise the refusal of a new operation; one that has begun is not refused."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, as they are stored and shown; with them another broker makes the operation again."""
        return {}

    def pages(self) -> Pages:
        """Run the operation, or go on; yields how many jobs each page changed."""
        raise NotImplementedError

    def answer(self) -> Any:
        """Return the answer to the client at the end: how many jobs were changed."""
        return self.done


class Purge(BulkOperation):
    """Remove all jobs of a state."""

    kind = "purge"
    resumes = True

    def __init__(self, queues: Queues, context: Context, queue: Queue, now: float, *, state: str) -> None:
        super().__init__(queues, context, queue, now)
        self.state = self._state = state

    @property
    def arguments(self) -> dict[str, Any]:
        """See :attr:`BulkOperation.arguments`."""
        return {"state": self._state}

    def pages(self) -> Pages:
        """Remove them; clients that wait for their results are answered at the end."""
        try:
            for removed in self._removals.purging(self.queue.name, self._state, self.now, lambda: self.page):
                self._counters.add(Count.PURGED, removed)
                self.queue.capacity.recount()
                self.queue.events.emit(Count.PURGED, self.now, [{"jobs": removed, "state": self._state}])
                yield removed
            self.queue.groups.promote_headless(now=True)  # after a cancelled purge the sweep does it
        finally:
            self.queue.results.check()


class _OfDeadLetters(BulkOperation):
    """An operation on dead letters, chosen by ids, error, kind, time of death and number."""

    resumes = True
    state = State.DEAD

    def __init__(
        self,
        queues: Queues,
        context: Context,
        queue: Queue,
        now: float,
        *,
        ids: list[str] | None = None,
        reason: str | None = None,
        limit: int | None = None,
        since: float | None = None,
        until: float | None = None,
        error: str | None = None,
        place: str | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(queues, context, queue, now)
        of_ids = None if ids is None else tuple(ids)
        self._letters = DeadLetters(of_ids, reason, limit, since, until, error, place, kind)

    @property
    def arguments(self) -> dict[str, Any]:
        """How the dead letters are chosen, without what was left open."""
        which = {**self._letters._asdict(), "ids": self._letters.ids and list(self._letters.ids)}
        return {name: value for name, value in which.items() if value is not None}

    def pages(self) -> Pages:
        """Run it, the oldest first; a kill before a page is noted lets the limit be passed by that page."""
        limit = self._letters.limit
        if limit is None:
            yield from self._paging(self._letters)
        elif limit > self.done:
            yield from self._paging(self._letters._replace(limit=limit - self.done))

    def _paging(self, letters: DeadLetters) -> Pages:
        raise NotImplementedError

    def _has_looked(self, count: int) -> None:
        self.looked += count


class Redrive(_OfDeadLetters):
    """Make dead letters ready again, here or in another queue."""

    kind = "redrive"

    def __init__(
        self,
        queues: Queues,
        context: Context,
        queue: Queue,
        now: float,
        *,
        to: str | None = None,
        **which: Any,
    ) -> None:
        super().__init__(queues, context, queue, now, **which)
        self._to = to
        self._target = queue if to is None else _target(queues, queue, to)
        self._redriven = Redriven()

    @property
    def arguments(self) -> dict[str, Any]:
        """How the dead letters are chosen, and the target queue."""
        return super().arguments | ({} if self._to is None else {"to": self._to})

    def admit(self) -> None:
        """Raise Paused or QueueFull if another queue takes no jobs; their own queue always takes them."""
        if self._to is not None:
            self._target.capacity.admit()

    def _paging(self, letters: DeadLetters) -> Pages:
        self._redriven.moved = self.done
        into = None if self._to is None else self._target.store
        paging = partial(
            Redrives(self._database, self._counters.notice).redriving,
            redriven=self._redriven,
            size=lambda: self.page,
            to=into,
            looked=self._has_looked,
        )
        for moved in paging(self.queue.name, letters, self.now):
            if not moved:
                yield 0
                continue
            self._counters.add(Count.REDRIVEN, moved)
            for queue in (self.queue, self._target):
                queue.capacity.recount()
            self._target.events.emit(Count.REDRIVEN, self.now, [{"jobs": moved, "from": self.queue.name}])
            self._target.groups.freed(self._redriven.groups)
            self._target.jobs_ready(moved)
            yield moved

    def answer(self) -> dict[str, Any]:
        """Return how many were moved, how many of those chosen are left, and the refusals of others."""
        refused = [[job_id, error.code, str(error)] for job_id, error in self._redriven.refused.items()]
        return {"moved": self.done, "left": self._redriven.left, "refused": refused}


class Discard(_OfDeadLetters):
    """Remove dead letters."""

    kind = "discard"
    counted = Count.PURGED

    def _paging(self, letters: DeadLetters) -> Pages:
        discarding = self._removals.discarding
        for removed in discarding(self.queue.name, letters, self.now, lambda: self.page, self._has_looked):
            if not removed:
                yield 0
                continue
            self._count(removed)
            self.queue.capacity.recount()
            self.queue.events.emit(self.counted, self.now, [{"jobs": removed, "state": State.DEAD}])
            yield removed

    def _count(self, removed: int) -> None:
        self._counters.add(self.counted, removed)


class Retire(Discard):
    """Remove dead letters that are too old, or too many, for the bounds of their queue."""

    kind = "retire"
    resumes = False  # the next sweep goes on
    counted = Count.DEAD_REMOVED

    def __init__(
        self, queues: Queues, context: Context, queue: Queue, now: float, *, bounds: DeadBounds
    ) -> None:
        super().__init__(queues, context, queue, now)
        self._bounds = bounds

    def pages(self) -> Pages:
        """Remove them, the oldest first; those that still matter to a parent or a ``dedupe_id`` stay."""
        yield from self._paging(DeadLetters(until=self._bounds.until, free_at=self.now))
        count, last = self._removals.excess(self.queue.name, self._bounds.most)
        if count:
            yield from self._paging(DeadLetters(limit=count, until=last + 0.001, free_at=self.now))

    def _count(self, removed: int) -> None:
        self.queue.counters.add(self.counted, removed)  # of the broker, too


class Delete(BulkOperation):
    """Remove a queue and all its jobs: one statement, as fast for a million jobs.

    Then their parents become dead letters, page by page.
    """

    kind = "delete"
    resumes = False  # run again it would remove jobs that were pushed since
    _dropped: int | None = None
    _carried_out = False
    _emptying: Iterator[int] = iter(())

    def pages(self) -> Pages:
        """Remove all jobs at once; a push under way may land behind it. Refused while there are workers."""
        if not self._carried_out:  # else this goes on, and spares what was pushed since
            if self._dropped is None:
                with self._queues.one_removal:
                    self._removal = Removal(self._queues, self._context, self.queue)
                    self._dropped = self._drop(self._removal)
            self._removal.end()
            self._carried_out = True
            yield self._dropped
        for _ in self._emptying:  # an attribute: the next call of pages goes on with it
            yield 0

    def _drop(self, removal: Removal) -> int:
        removal.begin()
        try:
            name, shared = self.queue.name, removal.shared
            self._emptying = self._removals.dropping(name, self.now, removal.token, shared=shared)
            return next(self._emptying)
        except Unclear:  # perhaps it is put aside: the next look at what is left finds that
            self._queues.removing.discard(removal.token)
            raise
        except SluiceError:
            removal.take_back()
            raise


class Expire(BulkOperation):
    """End jobs whose time to live has passed."""

    kind = "expire"
    resumes = False  # the next sweep goes on

    def pages(self) -> Pages:
        """End them until there are none; clients that wait for their results are answered."""
        while expired := self.queue.endings.expire(self.page):
            yield expired


#: By the kind that is stored.
BULK_OPERATIONS: Final[dict[str, type[BulkOperation]]] = {
    operation.kind: operation for operation in (Purge, Redrive, Discard, Retire, Delete, Expire)
}


def _target(queues: Queues, queue: Queue, to: str) -> Queue:
    if to == queue.name:
        raise BadQueueError(f"{to!r} is the queue of these dead letters: redrive them without naming a queue")
    target = queues.get(to)
    target.store.prepare(again=True)
    return target
