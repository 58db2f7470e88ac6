"""The claim orders, and which one a queue has."""

from __future__ import annotations

from typing import Final, NamedTuple

from pymongo import IndexModel

from sluicemq_broker.store.jobs.claim_order import ClaimOrder
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.fair_order import FairOrder
from sluicemq_broker.store.jobs.index_models import READY_INDEX
from sluicemq_broker.store.jobs.indexes import index_name
from sluicemq_broker.store.jobs.priority_order import PriorityOrder
from sluicemq_broker.store.values import Jobs

#: A queue has the first of these that serves its settings.
ORDERS: Final[list[type[ClaimOrder]]] = [FairOrder, PriorityOrder]


def order_of(defaults: QueueDefaults) -> type[ClaimOrder]:
    """Return the order of a queue with these settings."""
    return next(order for order in ORDERS if order.serves(defaults))


def is_another_order(before: QueueDefaults, after: QueueDefaults) -> bool:
    """Return True if a change of settings changes the order of a queue."""
    order = order_of(after)
    return order is not order_of(before) or any(
        getattr(before, name) != getattr(after, name) for name in order.settings
    )


def indexes_of_other_orders(defaults: QueueDefaults) -> list[IndexModel]:
    """Return the indexes that a queue with these settings does not need."""
    own = order_of(defaults).index
    return [order.index for order in ORDERS if order.index is not None and order.index is not own]


class SortedBy(NamedTuple):
    """How jobs are listed: by these fields, which the index ``by`` has."""

    sort: list[tuple[str, int]]
    by: str


def order_there(jobs: Jobs) -> SortedBy:
    """Return the order of a queue, whatever broker has it; that of plain queues until its index is made."""
    there = jobs.index_information()
    for order in ORDERS:
        if order.index is not None and index_name(order.index) in there:
            return SortedBy(order.sort, index_name(order.index))
    return SortedBy(PriorityOrder.sort, READY_INDEX)
