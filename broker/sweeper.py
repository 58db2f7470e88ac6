"""Jobs whose holder is gone, found and given back, again and again.

An insert can't be fenced, so a write of a dead owner may land late; and a lost reply leaves jobs
reserved by us that we don't know of. Hence not once, but every lease period: the owners of all
reserved jobs against the live leases, and what is reserved by us against memory.
"""

from __future__ import annotations

import logging

from broker.counters import Counters
from broker.mongo import ServerClock
from broker.owners import Owners
from broker.queue import Queue
from broker.queues import Queues

log = logging.getLogger("broker.sweeper")


class Sweeper:
    """The sweep and the audit of one broker; each call goes over all queues once."""

    def __init__(self, queues: Queues, owners: Owners, clock: ServerClock, counters: Counters) -> None:
        self._queues = queues
        self._owners = owners
        self._clock = clock
        self._counters = counters
        self._doubtful: set[tuple[str, str, str]] = set()

    def sweep(self) -> None:
        """Give back the jobs of every owner without a live lease; remove what has expired."""
        for queue in self._queues:
            queue.store.prepare()
            # The jobs' owners first, then the leases: a lease is written before its first job.
            holders = queue.store.owners()
            for owner in holders - self._owners.live() if holders else ():
                self._reclaim(queue, owner)
            queue.expire()

    def audit(self) -> None:
        """Give back what lies reserved under our ids and is in nobody's memory; close settled ids.

        What is not in memory may be on its way there (a claim under way), so it must be missing in
        two audits in a row.
        """
        missing = {
            (queue.name, owner, job_id)
            for queue in self._queues
            for owner in self._owners.mine()
            for job_id in queue.store.held_ids(owner) - queue.dispatch.held.keys()
        }
        for queue_name, owner, job_id in missing & self._doubtful:
            queue = self._queues.get(queue_name)
            if job_id not in queue.dispatch.held:
                self._counters.add("orphans", queue.store.release([job_id], owner))
                queue.dispatch.some_ready()
        self._doubtful = missing
        self._close_settled()

    def _close_settled(self) -> None:
        """A retired id under which nothing is known any more is marked dead; the sweep does the rest."""
        for owner in list(self._owners.retired):
            if not any(job.owner == owner for queue in self._queues for job in queue.dispatch.held.values()):
                self._owners.close(owner)

    def _reclaim(self, queue: Queue, owner: str) -> None:
        ready, dead = queue.store.reclaim(owner, queue.settings.max_losses, self._clock.now())
        if ready or dead:
            log.warning(
                "queue %s: %d jobs of the gone owner %s are ready again, %d are dead",
                queue.name,
                ready,
                owner,
                dead,
            )
        self._counters.add("reclaimed", ready)
        self._counters.add("dead", dead)
        queue.dispatch.some_ready()
