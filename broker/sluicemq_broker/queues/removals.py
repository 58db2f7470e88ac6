"""Removal of a queue as a state that all brokers read: ordered, heard by all, carried out, ended.

::

    removing, with a token ──▶ heard by every live broker ──▶ put aside, by that token ──▶ removed
          │                          │
          └──────── a broker has workers, or MongoDB refuses: taken back, the queue goes on

While the state stands no broker hands out jobs of the queue. What is pushed meanwhile goes with the queue, or
makes another one if it comes behind that one step. When a broker reads that the queue is removed it drops
what it holds of it and answers clients that wait for its jobs; it reads so later, too, if it was away.

Killed before the queue is put aside: any broker takes the state back, and the queue goes on. Killed after it:
any broker ends the removal. The token in the name of the put-aside collection says which it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from secrets import token_hex

from gevent.event import Event

from sluicemq.protocol.errors import BadQueueError, SluiceError, UnavailableError
from sluicemq_broker.context import Context
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import QueueRecord, Removals, Removing


class Removal:
    """The removal of one queue, ordered here; ``shared``: a broker may push to it and not know of that."""

    def __init__(self, queues: Queues, context: Context, queue: Queue) -> None:
        self.token = token_hex(8)
        self.shared = True
        self._queues = queues
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._name = queue.name

    def begin(self) -> None:
        """Wait until all brokers hand out no jobs of the queue; raises BadQueue if it has workers at one."""
        queue = self._queues.get(self._name)
        if queue.workers:
            raise self._busy(queue.workers, "here")
        database = self._queues.database_name(self._name)
        live = self._owners.live(database)
        self._queues.removing.add(self.token)
        try:
            self._queues.order(self._name, self._marked)
            self.shared = not self._is_heard(database, live)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Let the queue go on; what can't be written now is written by a later sweep of any broker."""
        self._queues.removing.discard(self.token)
        try:
            self._queues.order(self._name, self._unmarked)
        except SluiceError as error:
            text = f"queue {self._name} goes on, but its record says so only later: {error}"
            self._queues.context.counters.notice(Count.STORE_UNAVAILABLE, text)
        if queue := self._queues.known(self._name):
            queue.store.removal_failed()

    def end(self) -> None:
        """Note that the queue is removed, for all brokers; may be repeated after an error."""
        self._queues.order(self._name, QueueRecord.without_orders)
        self._queues.removing.discard(self.token)

    def _marked(self, record: QueueRecord) -> QueueRecord:
        if record.removing:
            raise UnavailableError(
                f"queue {self._name!r} is being removed already, or a broker was killed while it removed it: "
                "try again when its lease has ended"
            )
        by = self._owners.current
        return replace(record, removing=Removing(self.token, by, self._clock.now()))

    def _unmarked(self, record: QueueRecord) -> QueueRecord:
        is_ours = record.removing is not None and record.removing.token == self.token
        return replace(record, removing=None) if is_ours else record

    def _is_heard(self, database: str, live: Iterable[str]) -> bool:
        """Wait for the brokers with these leases; False if one has not heard in time."""
        poll = self._queues.config.broker.poll
        # Polls, and seconds, after which a broker that has not heard of a removal is waited for no longer.
        until, never = self._timer.now() + 1.0 + 2 * poll, Event()
        while True:
            removing = self._queues.records.store(database).one(self._name).removing
            if removing is None or removing.token != self.token:
                # Only what a dead broker has left is taken back: the lease of this one was over.
                raise UnavailableError(
                    f"this broker was taken for dead, and another one has taken back the removal of queue "
                    f"{self._name!r}: try again"
                )
            if workers := sum(removing.heard.values()):
                raise self._busy(workers, "at other brokers")
            if removing.heard.keys() >= set(live):
                return True
            if self._timer.now() >= until:
                return False
            self._timer.wait(never, 0.02)  # seconds between two looks who has heard

    def _busy(self, workers: int, where: str) -> BadQueueError:
        return BadQueueError(f"queue {self._name!r} has {workers} workers {where}: stop them first")


def end_left(queues: Queues, context: Context) -> None:
    """End or take back removals that killed brokers have left half done; called every lease."""
    queues.follow_records()
    for database, record, removing in queues.records.removals():
        if queues.database_name(record.name) == database and _is_left(queues, context, database, removing):
            aside = Removals(queues.database(database)).is_put_aside(record.name, removing.token)
            queues.order(record.name, partial(_ended, removing, removed=aside))


def under_way(queues: Queues) -> set[str]:
    """Return the tokens of removals that have not ended, by a look at this moment."""
    queues.follow_records()
    return {removing.token for _, _, removing in queues.records.removals()}


def _is_left(queues: Queues, context: Context, database: str, removing: Removing) -> bool:
    """Return True if no live broker carries a removal out."""
    if removing.by in context.owners.own_ids():
        return removing.token not in queues.removing
    return not context.owners.is_live(removing.by, database)


def _ended(removing: Removing, record: QueueRecord, *, removed: bool) -> QueueRecord:
    """Return the record after a removal, or after that is taken back; another may have been first."""
    if record.removing is None or record.removing.token != removing.token:
        return record
    return record.without_orders() if removed else replace(record, removing=None)
