"""A stream's messages become jobs of a queue: with the watermark of a subscription, in one transaction.

Crash or lost reply: both are there or neither, so whoever goes on from the watermark makes no job a second
time, also of one that is done and gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import LeaseLost
from sluicemq_broker.job import Job
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.streams.subscriptions import Subscription, SubscriptionStore


class RouteStore:
    """From one subscription into one queue; both lie in the same MongoDB."""

    def __init__(self, subscriptions: SubscriptionStore, queue: QueueStore) -> None:
        self._subscriptions = subscriptions
        self._queue = queue

    def route(self, held: Subscription, watermark: int, jobs: Sequence[Job], now: float) -> Sequence[Job]:
        """Raise the watermark and insert the jobs, but those whose id is in the queue already.

        Returns those that were inserted. Raises :class:`LeaseLost` where the hold has ended, DifferentStore
        where there are no transactions, and as every statement does; repeat it only after a look at the
        watermark.
        """

        def mark(_new: Sequence[Job], session: ClientSession) -> bool:
            return self._subscriptions.mark_within(session, held, watermark, now)

        routed = insert_with(self._queue, jobs, now, mark, "routes")
        if routed is None:
            raise LeaseLost(f"subscription {held.name!r} of {held.stream!r} is not held under {held.fence}")
        return routed
