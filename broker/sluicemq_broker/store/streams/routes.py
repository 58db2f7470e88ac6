"""Routes: messages of a stream become jobs of a queue, in one transaction with a subscription's watermark.

Crash or lost reply: both are stored or neither. So a route that goes on from the watermark makes no job
twice, not even one that is done and removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import LeaseLostError
from sluicemq_broker.job import Job
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.streams.subscriptions import Subscription, SubscriptionStore


class RouteStore:
    """A route from one subscription into one queue; both are in one MongoDB."""

    def __init__(self, subscriptions: SubscriptionStore, queue: QueueStore) -> None:
        self._subscriptions = subscriptions
        self._queue = queue

    def route(self, held: Subscription, watermark: int, jobs: Sequence[Job], now: float) -> Sequence[Job]:
        """Raise the watermark and insert the jobs whose ids are not in the queue yet; return these.

        Raises :class:`LeaseLost` where the hold has ended, DifferentStore where there are no transactions,
        and the errors of every statement. Repeat it only after a look at the watermark.
        """

        def mark(_new: Sequence[Job], session: ClientSession) -> bool:
            return self._subscriptions.mark_within(session, held, watermark, now)

        # failpoint routes
        routed = insert_with(self._queue, jobs, now, mark, "routes")
        if routed is None:
            raise LeaseLostError(
                f"subscription {held.name!r} of {held.stream!r} is not held under {held.fence}"
            )
        return routed
