"""Questions to a scheduler, and its answers: plain values."""

from __future__ import annotations

from typing import NamedTuple

from sluicemq_broker.queue.ledger import Bound
from sluicemq_broker.queue.worker import Delivery, Worker


class Conditions(NamedTuple):
    """How things stand around one queue at a moment.

    ``now``: monotonic seconds; ``server``: the time of MongoDB's server; ``owner``: the id under which this
    broker reserves jobs, empty if it has none; ``others``: how many other brokers there are, and
    ``place``: how many of them come before this one;
    ``may_hand_out``: False while other brokers may take this one for dead, and while too many verdicts of
    the queue are not written.
    """

    now: float
    server: float
    owner: str
    others: int
    place: int
    may_hand_out: bool


class WorkerMessage(NamedTuple):
    """Jobs that go to one worker now. ``more``: it could take more than these."""

    worker: Worker
    deliveries: list[Delivery]
    size: int
    more: bool


class ClaimPlan(NamedTuple):
    """One claim: at most ``limit`` jobs of ``most_bytes``, due at ``due``, as far as ``bound`` says.

    ``number``: of the reservation; ``brokers``: how many claim at once, ``place`` of them before this one;
    ``one_first``: the first job is claimed alone.
    """

    limit: int
    most_bytes: int
    due: float
    bound: Bound
    number: int
    brokers: int
    place: int
    one_first: bool


class News(NamedTuple):
    """News for other brokers: jobs are ``ready``, jobs of limited tenants were ``freed``.

    ``anywhere``: jobs may have become ready among those that claims have read ahead.
    """

    ready: bool = False
    anywhere: bool = False
    freed: bool = False
