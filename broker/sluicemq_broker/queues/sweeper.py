"""Sweep and audit: jobs of dead brokers, and unknown reservations of ours, are made ready again.

An insert can't be fenced, so a write of a dead owner may land late; and a lost reply leaves reservations in
MongoDB that this broker does not know. So both run every lease period: the sweep compares the owners of
reserved jobs with the live leases, the audit compares our reservations in MongoDB with those in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice

from sluicemq_broker.context import Context
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.attempts import attempt_each
from sluicemq_broker.queues.bulk_operations import PAGE
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Surveyed

log = logging.getLogger("broker.sweeper")

#: A job that is reserved and not in memory: queue, owner, id, number of the reservation.
_Missing = tuple[str, str, str, int]


class Sweeper:
    """The sweep and the audit of one broker; each call goes over all queues once.

    A survey says which owners have reserved jobs in each queue, and when the first job expires. An unused
    queue that needs no care by the survey is swept more rarely, for what no survey sees: missing indexes,
    documents that are no jobs, jobs that expire inside a group. Without that a thousand queues would take a
    twentieth of a processor, and five seconds of each start.
    """

    def __init__(
        self,
        queues: Queues,
        context: Context,
        expire: Callable[[str], None],
        survey: Callable[[], Mapping[str, Surveyed]],
    ) -> None:
        """``expire(queue)``: end expired jobs in the background; ``survey()``: all queues."""
        self._queues = queues
        self._survey = survey
        self._expire = expire
        self._owners = context.owners
        self._clock = context.clock
        self._counters = context.counters
        self._doubtful: set[_Missing] = set()
        self._live: set[str] = set()
        self._swept = _Turns()

    def sweep(self) -> None:
        """Give back the jobs of owners without a live lease; end expired jobs."""
        surveyed = self._survey()  # before the leases: a lease is written before its first job
        live = self._owners.live()
        gone = bool(self._live - live) or not self._live
        self._live = live
        turn = {queue.name for queue in self._swept.next(self._queues)}
        live_in = cache(self._owners.live)

        def needs_care(queue: Queue) -> bool:
            """True if jobs have expired or belong to an owner without a live lease, or permits may."""
            found = surveyed.get(queue.name)
            if found is None or found.expires <= self._clock.now() or (gone and queue.permits.limited):
                return True
            return bool(found.owners) and bool(found.owners - live_in(queue.settings.database))

        def sweep(queue: Queue) -> None:
            if queue.name in turn or needs_care(queue):
                self._sweep(queue, gone=gone)
            elif gone:
                queue.groups.promote_headless(now=True)

        attempt_each(self._queues, sweep, self._failed)

    def audit(self) -> None:
        """Make jobs ready that are reserved under our id in MongoDB, but unknown here.

        Their claim landed after this broker had given up waiting for its answer. A job that was read may have
        ended since, so it must be unknown in two audits in a row.
        """
        surveyed, own = self._survey(), set(self._owners.own_ids())
        missing: set[_Missing] = set()

        def note_missing(queue: Queue) -> None:
            found = surveyed.get(queue.name)
            if found is None or found.owners & own:
                missing.update(self.missing(queue))

        attempt_each(self._queues, note_missing, self._failed)
        orphans = missing & self._doubtful
        if orphans:
            attempt_each(self._queues, lambda queue: self._free(queue, orphans), self._failed)
        self._doubtful = missing

    def _failed(self, queue: Queue, error: Exception) -> None:
        self._counters.notice(Count.UNSWEPT, f"queue {queue.name}: {type(error).__name__}: {error}")

    def _sweep(self, queue: Queue, *, gone: bool) -> None:
        """Sweep one queue; ``gone``: a dead broker may have left a group without a head."""
        queue.store.prepare()
        queue.store.mend()
        queue.store.mend_ownerless(self._clock.now())
        # The jobs' owners first, then the leases: a lease is written before its first job. Both may come
        # from a former primary, so a lease that seems to have ended is read again with certainty.
        holders, database = queue.store.owners() | queue.permits.holders(), queue.settings.database
        for owner in holders - self._owners.live(database) if holders else ():
            if not self._owners.is_live(owner, database):
                self._reclaim(queue, owner)
                gone = True
        queue.groups.promote_headless(now=gone)
        if queue.endings.expire(PAGE) == PAGE:
            self._expire(queue.name)
        self._swept.keep(queue, wanted=queue.store.will_expire())

    def missing(self, queue: Queue) -> set[_Missing]:
        """Return reservations that MongoDB names and this broker does not know."""
        return {
            (queue.name, owner, job_id, hold)
            for owner in self._owners.own_ids()
            for job_id, hold in queue.scheduler.reservations.unknown(queue.store.reservations(owner))
        }

    def _free(self, queue: Queue, orphans: set[_Missing]) -> None:
        owners = {(job_id, hold): owner for name, owner, job_id, hold in orphans if name == queue.name}
        for job_id, hold in queue.scheduler.reservations.unknown(owners):
            self._counters.add(Count.ORPHANS, queue.store.free(job_id, owners[job_id, hold], hold))
            queue.jobs_ready()

    def _reclaim(self, queue: Queue, owner: str) -> None:
        ready, dead = queue.store.reclaim(owner, queue.settings.max_losses, self._clock.now())
        if ready or dead:
            log.warning(
                "queue %s: %d jobs of the dead owner %s are ready again, %d are dead letters",
                queue.name,
                ready,
                owner,
                dead,
                extra={"queue": queue.name, "reason": f"owner {owner} is gone"},
            )
        self._counters.add(Count.RECLAIMED, ready)
        queue.counters.add(Count.DEAD, dead)  # of the broker, too
        queue.capacity.recount()
        queue.permits.forget(owner)  # after its jobs are given back, or too many could run
        if dead:
            queue.results.check()
        queue.jobs_ready()


class _Turns:
    """The queues of each sweep: all that are in use, and some of the others in turn."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._waiting: dict[str, None] = {}  # in the order of their turns

    def keep(self, queue: Queue, *, wanted: bool) -> None:
        """Note whether a queue wants care in each sweep."""
        (self._wanted.add if wanted else self._wanted.discard)(queue.name)

    def next(self, queues: Iterable[Queue]) -> list[Queue]:
        """Return the queues of the next sweep; one that has counted since its last turn is in use, too."""
        used, unused = [], {}
        for queue in queues:
            counted = sum(queue.counters.values.values())
            if queue.in_use or queue.name in self._wanted or self._counted.get(queue.name, 0) != counted:
                used.append(queue)
                self._counted[queue.name] = counted
            else:
                unused[queue.name] = queue
        there = {queue.name for queue in used} | unused.keys()
        self._counted = {name: counted for name, counted in self._counted.items() if name in there}
        self._wanted &= there
        order = [name for name in self._waiting if name in unused]
        order += [name for name in unused if name not in self._waiting]
        # The share of unused queues that is swept each lease, and their least number.
        turn = list(islice(order, max(32, -(-len(order) // 32))))
        self._waiting = dict.fromkeys([*order[len(turn) :], *turn])
        return used + [unused[name] for name in turn]
