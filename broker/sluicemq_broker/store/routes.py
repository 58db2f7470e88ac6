"""A stream's messages become jobs of a queue: with the watermark of a subscription, in one transaction.

Crash or lost reply: both are there or neither, so whoever goes on from the watermark makes no job a second
time, also of one that is done and gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from sluicemq.errors import DifferentStore, LeaseLost, Unavailable
from sluicemq_broker.job import Job
from sluicemq_broker.store.connection import translated
from sluicemq_broker.store.queue_store import QueueStore
from sluicemq_broker.store.subscriptions import Subscription, SubscriptionStore

_NO_TRANSACTIONS = 20  # the server's code on a stand-alone: IllegalOperation
_DUPLICATE_KEY = 11000
#: How often a batch is tried again of which others push ids in the meantime.
_TRIES = 5


class RouteStore:
    """From one subscription into one queue; both lie in the same MongoDB."""

    def __init__(self, subscriptions: SubscriptionStore, queue: QueueStore) -> None:
        self._subscriptions = subscriptions
        self._queue = queue

    def route(self, held: Subscription, watermark: int, jobs: Sequence[Job], now: float) -> int:
        """Raise the watermark and insert the jobs, but those whose id is in the queue already.

        Returns how many were inserted. Raises :class:`LeaseLost` where the hold has ended, DifferentStore
        where there are no transactions, and as every statement does; repeat it only after a look at the
        watermark.
        """
        self._queue.prepare()  # no transaction can make a collection's indexes
        with translated():
            for _ in range(_TRIES):
                there = self._queue.which_exist([each.id for each in jobs])
                new = [each for each in jobs if each.id not in there]
                if self._committed(held, watermark, new, now):
                    return len(new)
        raise Unavailable(f"others push the ids of {held.stream!r} all the time; try again")

    def _committed(self, held: Subscription, watermark: int, jobs: Sequence[Job], now: float) -> bool:
        try:
            with self._queue.jobs.database.client.start_session() as session:
                session.with_transaction(
                    lambda session: self._apply(held, watermark, jobs, now, session),
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                )
        except BulkWriteError as error:
            if {each.get("code") for each in error.details["writeErrors"]} != {_DUPLICATE_KEY}:
                raise
            return False
        except OperationFailure as error:
            if error.code != _NO_TRANSACTIONS:
                raise
            raise DifferentStore("a stand-alone MongoDB has no transactions, which routes need") from error
        return True

    def _apply(
        self, held: Subscription, watermark: int, jobs: Sequence[Job], now: float, session: ClientSession
    ) -> None:
        if not self._subscriptions.mark_within(session, held, watermark, now):
            raise LeaseLost(f"subscription {held.name!r} of {held.stream!r} is not held under {held.fence}")
        if jobs:
            self._queue.insert_within(session, jobs, now)
