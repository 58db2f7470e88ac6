"""The groups of one queue at this broker: places for pushes, and the next job of a line when one has ended.

A push takes its places before it is written, while the one before it may be, and one push of a queue with
groups is written here at a time. So jobs that this broker has confirmed stand before those that come later,
here or elsewhere. A part that has written something by which a line may go on says so
(:meth:`Groups.may_advance`), and the next job is promoted, in batches: ``kill -9`` before that leaves a group
without a first job, which :meth:`Groups.promote_headless` finds, in every broker's sweep: at once if a
broker has gone, else each minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from sluicemq_broker.job import Job
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import Promoted

#: Seconds between two searches for groups without a first job, where no broker has gone.
HEADLESS_EVERY: Final = 60.0


class Groups:
    """The lines of all groups: the first job of each may be claimed."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._promoted_at = -math.inf
        self._freed: Batcher[str] = Batcher(self._promote, size=1000, in_flight=2)  # statements at once

    @property
    def busy(self) -> bool:
        """True if any is about to be promoted."""
        return self._freed.busy

    def line_up(self, jobs: Sequence[Job]) -> None:
        """Give each job of a group its place, behind all that have one; blocks."""
        new = [job for job in jobs if job.group is not None and job.place is None]
        if new:
            first = self._core.retry.run(lambda: self._core.store.groups.places(len(new)))
            for place, job in enumerate(new, first):
                job.line_up(place)

    def may_advance(self, jobs: Iterable[Job]) -> None:
        """Jobs have come into the lines of their groups, or have ended."""
        groups = {job.group for job in jobs}
        self.freed([group for group in groups if group is not None])

    def freed(self, groups: Iterable[str]) -> None:
        """One that was the first of these groups may have ended, or one may have come."""
        self._freed.extend(groups)

    def promote_headless(self, *, now: bool) -> None:
        """Promote where nobody did: ``now``, or if that is long ago. Raises as every statement does."""
        if now or self._core.timer.now() - self._promoted_at >= HEADLESS_EVERY:
            self._promoted_at = self._core.timer.now()
            for groups in self._core.store.groups.headless():
                self._note_promoted(self._core.store.groups.promote(groups, self._core.clock.now()))

    def _promote(self, freed: list[str]) -> None:
        """A broker that stops before it has an answer leaves it to :meth:`promote_headless`."""
        groups = set(freed)
        self._note_promoted(
            self._core.retry.run(lambda: self._core.store.groups.promote(groups, self._core.clock.now()))
        )

    def _note_promoted(self, promoted: Promoted) -> None:
        conditions = self._core.conditions()
        now = conditions.server
        due = [hint for hint in promoted.ready if hint.due <= now]
        if due:
            highest, last = max(hint.priority for hint in due), max(hint.seq for hint in due)
            self._core.scheduler.promoted(highest, len(due), last, conditions)
        self._core.scheduler.due_times.add((hint.due for hint in promoted.ready if hint.due > now), now)
        self._core.scheduler.expire(promoted.expired)
        self._core.dispatch()
