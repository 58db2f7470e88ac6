"""Queues of one worker: their names and weights, and which one's job begins next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

from sluicemq import arguments
from sluicemq.job import Job
from sluicemq.protocol.errors import BadQueueError
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.readable import brief

#: A queue; several; or several with their weights.
Queues: TypeAlias = Annotated[str | Sequence[str] | Mapping[str, int], arguments.elsewhere]
#: Which job begins next: those of queues in proportion to their weights, or the first queue's.
QueueOrder: TypeAlias = Annotated[Literal["weights", "strict"], arguments.elsewhere]


class Inbox(Protocol):
    """Jobs that have come and that no handler has begun; for any thread."""

    def popleft(self) -> Job:
        """Remove and return the next job; raises IndexError if there is none."""

    def __len__(self) -> int:
        """Return how many there are."""


def weights_of(queue: Queues, order: QueueOrder) -> dict[str, int]:
    """Return the weight of each queue, in their order; raises TypeError or ValueError."""
    if order not in ("weights", "strict"):
        raise ValueError(f"order is {brief(order)}: give 'weights' or 'strict'")
    if isinstance(queue, str):
        arguments.text("queue", queue)
        return {arguments.plain_text(queue): 1}  # the broker says what is wrong with a name
    if not isinstance(queue, Mapping | Sequence) or isinstance(queue, bytes | bytearray | memoryview):
        raise TypeError(f"queue is a name, a list of names, or weights by name, not {type(queue).__name__}")
    weights = dict(queue) if isinstance(queue, Mapping) else dict.fromkeys(queue, 1)
    if not weights:
        raise ValueError("queue is an empty list: name at least one")
    for name, weight in weights.items():
        arguments.text("queue", name)
        if not is_queue_name(name):
            raise BadQueueError(f"{brief(name)} is no queue name: {QUEUE_NAME_RULE}")
        arguments.whole(f"weight of queue {name}", weight)
        if weight < 1:
            raise ValueError(f"weight of queue {name} is {weight}: give 1 or more")
    return weights


def prefetch_of(weights: Mapping[str, int], prefetch: int, concurrency: int) -> dict[str, int]:
    """Return how many jobs of each queue a worker has at most: the next of each is to be here in time."""
    if len(weights) == 1:
        return dict.fromkeys(weights, prefetch)
    total, together = prefetch * len(weights), sum(weights.values())
    return {name: max(2 * concurrency, total * weight // together) for name, weight in weights.items()}


def one_inbox(weights: Mapping[str, int], inboxes: Mapping[str, deque[Job]], order: QueueOrder) -> Inbox:
    """Return all jobs of several queues as one inbox, from which they come in this order."""
    if len(inboxes) == 1:
        return next(iter(inboxes.values()))
    kind = StrictInbox if order == "strict" else WeightedInbox
    return kind(list(inboxes.values()), [weights[name] for name in inboxes])


class StrictInbox:
    """Jobs of several queues: one of a queue comes only if those before it have none here."""

    def __init__(self, inboxes: Sequence[deque[Job]], _weights: Sequence[int]) -> None:
        self._inboxes = inboxes

    def __len__(self) -> int:
        return sum(map(len, self._inboxes))

    def popleft(self) -> Job:
        """Remove and return a job of the first queue that has one."""
        for inbox in self._inboxes:
            if inbox:
                return inbox.popleft()
        raise IndexError


class WeightedInbox:
    """Jobs of several queues, in proportion to their weights while each has some.

    Each queue has a time of its own, which goes on by 1 / weight with each of its jobs. The queue whose time
    is the earliest is next. One that was empty goes on from the present: it saves no turns up.
    """

    def __init__(self, inboxes: Sequence[deque[Job]], weights: Sequence[int]) -> None:
        self._inboxes = inboxes
        self._steps = [1 / weight for weight in weights]
        self._times = list(self._steps)
        self._now = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._inboxes))

    def popleft(self) -> Job:
        """Remove and return a job of the queue whose turn it is."""
        with self._lock:
            turns = [(max(self._times[at], self._now), at) for at, inbox in enumerate(self._inboxes) if inbox]
            time, at = min(turns, default=(0.0, -1))
            if at < 0:
                raise IndexError
            job = self._inboxes[at].popleft()  # or IndexError: an I/O thread has taken it back
            self._now, self._times[at] = time, time + self._steps[at]
            return job
