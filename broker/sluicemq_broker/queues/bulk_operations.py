"""What can be ordered for many jobs of a queue at once, page by page; :mod:`tasks` carries it out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, ClassVar, Final

from sluicemq.protocol.errors import BadQueue, SluiceError
from sluicemq_broker.context import Context
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import DeadLetters, Redriven, Redrives, Removals

#: Jobs in a page, at most.
PAGE: Final = 500

Pages = Generator[int, None, None]


class BulkOperation:
    """One order for a queue. ``now`` is when it was given, in the server's time: what came later is spared.

    ``resumes``: carrying it out once more goes on where it was left, also after another broker's death.
    ``state``: that of the jobs that it is about; None: of several. ``done``: jobs so far, former tries too.
    ``looked``: dead letters that this try has looked at, whether it was about them or not.
    ``page``: jobs in the next page, at most.
    """

    kind: ClassVar[str]
    resumes: ClassVar[bool]
    state: str | None = None

    def __init__(self, queues: Queues, context: Context, queue: Queue, now: float) -> None:
        queue.prepare()
        self.queue = queue
        self.now = now
        self.done = 0
        self.looked = 0
        self.page = PAGE
        self._queues = queues
        self._owners = context.owners
        self._counters = context.counters
        self._database = queues.database_of(queue)
        self._removals = Removals(self._database, FailedParents(queues), context.counters.notice)

    def admit(self) -> None:
        """It was given just now: raises what it is refused with. Once it has begun it goes on."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What was ordered, as it is stored and shown, and given to make the same order again."""
        return {}

    def pages(self) -> Pages:
        """Carry it out, or go on: after each page how many jobs it was."""
        raise NotImplementedError

    def answer(self) -> Any:
        """What whoever ordered it is told at the end: how many jobs it was."""
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
        """The state whose jobs are removed."""
        return {"state": self._state}

    def pages(self) -> Pages:
        """Whoever waits for one of them hears of it at the end."""
        try:
            for removed in self._removals.purging(self.queue.name, self._state, self.now, lambda: self.page):
                self._counters.add(Count.PURGED, removed)
                self.queue.capacity.recount()
                self.queue.events.emit(Count.PURGED, self.now, [{"jobs": removed, "state": self._state}])
                yield removed
            self.queue.look_for_headless(now=True)  # whoever ends it sooner leaves that to the sweep
        finally:
            self.queue.results.check()


class _OfDeadLetters(BulkOperation):
    """An order for dead letters: which ids or reason, dead since when and until, at most how many."""

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
    ) -> None:
        super().__init__(queues, context, queue, now)
        self._letters = DeadLetters(None if ids is None else tuple(ids), reason, limit, since, until)

    @property
    def arguments(self) -> dict[str, Any]:
        """Which dead letters were ordered, without what was left open."""
        which = {**self._letters._asdict(), "ids": self._letters.ids and list(self._letters.ids)}
        return {name: value for name, value in which.items() if value is not None}

    def pages(self) -> Pages:
        """The oldest first. Killed between a page and the note of it, a limit is passed by that page."""
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
        """Which, and where to."""
        return super().arguments | ({} if self._to is None else {"to": self._to})

    def admit(self) -> None:
        """Raises Paused, or QueueFull, where another queue takes none; its own takes its own ones."""
        if self._to is not None:
            self._target.admit()

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
            for each in (self.queue, self._target):
                each.capacity.recount()
            self._target.events.emit(Count.REDRIVEN, self.now, [{"jobs": moved, "from": self.queue.name}])
            self._target.freed(self._redriven.groups)
            self._target.jobs_ready(moved)
            yield moved

    def answer(self) -> dict[str, Any]:
        """How many were moved, how many of those chosen are left, and why some could not be."""
        refused = [[job_id, error.code, str(error)] for job_id, error in self._redriven.refused.items()]
        return {"moved": self.done, "left": self._redriven.left, "refused": refused}


class Discard(_OfDeadLetters):
    """Remove dead letters."""

    kind = "discard"

    def _paging(self, letters: DeadLetters) -> Pages:
        discarding = self._removals.discarding
        for removed in discarding(self.queue.name, letters, self.now, lambda: self.page, self._has_looked):
            if not removed:
                yield 0
                continue
            self._counters.add(Count.PURGED, removed)
            self.queue.capacity.recount()
            self.queue.events.emit(Count.PURGED, self.now, [{"jobs": removed, "state": State.DEAD}])
            yield removed


class Delete(BulkOperation):
    """Remove a queue and all its jobs: one statement, which takes no longer with a million jobs.

    Then parents of these become dead letters, page by page.
    """

    kind = "delete"
    resumes = False  # it spares nothing that was pushed since
    _dropped: int | None = None
    _carried_out = False
    _emptying: Iterator[int] = iter(())

    def pages(self) -> Pages:
        """All jobs at once; of what is on its way some may come after. Refused while there are workers."""
        if not self._carried_out:  # else it has taken long, and what was pushed since is spared
            if self._dropped is None:
                with self._queues.one_removal:
                    self._dropped = self._drop(self._queues.get(self.queue.name))
            self._queues.forget(self.queue.name)
            self._carried_out = True
            yield self._dropped
        for _ in self._emptying:  # it goes on, where this is closed in between
            yield 0

    def _drop(self, queue: Queue) -> int:
        if queue.workers:
            raise BadQueue(f"queue {queue.name!r} has {queue.workers} workers: stop them first")
        others = self._owners.live(queue.settings.database) - set(self._owners.mine())
        queue.store.dropped()  # from before, so that nobody who looks at it makes it again
        try:
            self._emptying = self._removals.dropping(queue.name, self.now, shared=bool(others))
            count = next(self._emptying)
        except SluiceError:
            queue.store.kept()
            raise
        self._queues.removed(queue)
        return count


class Expire(BulkOperation):
    """End what was not taken in time."""

    kind = "expire"
    resumes = False  # the next sweep goes on

    def pages(self) -> Pages:
        """Until there is no more; whoever waits for one of them hears of it."""
        while expired := self.queue.expire(self.page):
            yield expired


#: By the kind that is stored.
BULK_OPERATIONS: Final[dict[str, type[BulkOperation]]] = {
    each.kind: each for each in (Purge, Redrive, Discard, Delete, Expire)
}


def _target(queues: Queues, queue: Queue, to: str) -> Queue:
    if to == queue.name:
        raise BadQueue(f"{to!r} is the same queue: redrive it without naming another")
    target = queues.get(to)
    target.prepare(again=True)
    return target
