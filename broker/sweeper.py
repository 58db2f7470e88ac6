"""Jobs whose holder is gone, found and given back, again and again.

An insert can't be fenced, so a write of a dead owner may land late; and a lost reply leaves jobs
reserved by us that we don't know of. Hence not once, but every lease period: the owners of all
reserved jobs against the live leases, and what is reserved by us against memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.counters import Counters
from broker.mongo import ServerClock, Unclear
from broker.owners import Owners
from broker.queue import Queue
from broker.queues import Queues
from sluicemq.errors import Unavailable

log = logging.getLogger("broker.sweeper")

#: A job that is reserved and not in memory: its queue, its owner, its id.
_Missing = tuple[str, str, str]


class Sweeper:
    """The sweep and the audit of one broker; each call goes over all queues once.

    A queue that fails is counted and logged, and does not keep those behind it from their turn.
    """

    def __init__(self, queues: Queues, owners: Owners, clock: ServerClock, counters: Counters) -> None:
        self._queues = queues
        self._owners = owners
        self._clock = clock
        self._counters = counters
        self._doubtful: set[_Missing] = set()

    def sweep(self) -> None:
        """Give back the jobs of every owner without a live lease; end what has expired."""
        self._each(self._sweep)

    def audit(self) -> None:
        """Give back what lies reserved under our ids and is in nobody's memory; close settled ids.

        What is not in memory may be on its way there (a claim under way), so it must be missing in
        two audits in a row.
        """
        missing: set[_Missing] = set()
        self._each(lambda queue: missing.update(self._missing(queue)))
        orphans = missing & self._doubtful
        if orphans:
            self._each(lambda queue: self._free(queue, orphans))
        self._doubtful = missing
        self._close_settled()

    def _each(self, duty: Callable[[Queue], None]) -> None:
        for queue in self._queues:
            try:
                duty(queue)
            except Exception as error:
                if isinstance(error, Unavailable) and not isinstance(error, Unclear):
                    raise  # MongoDB is away, for all of them
                self._counters.notice("unswept", f"queue {queue.name}: {type(error).__name__}: {error}")

    def _sweep(self, queue: Queue) -> None:
        queue.store.prepare()
        queue.store.mend()
        # The jobs' owners first, then the leases: a lease is written before its first job.
        holders = queue.store.owners()
        for owner in holders - self._owners.live() if holders else ():
            self._reclaim(queue, owner)
        queue.expire()

    def _missing(self, queue: Queue) -> set[_Missing]:
        held = queue.dispatch.held
        owners = self._owners.mine()
        return {
            (queue.name, owner, job_id)
            for owner in owners
            for job_id in queue.store.held_ids(owner) - held.keys()
        }

    def _free(self, queue: Queue, orphans: set[_Missing]) -> None:
        for name, owner, job_id in orphans:
            if name == queue.name and job_id not in queue.dispatch.held:
                self._counters.add("orphans", queue.store.release([job_id], owner))
                queue.dispatch.supply.some_ready()

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
        queue.dispatch.supply.some_ready()
