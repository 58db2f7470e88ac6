"""Parents of jobs that are removed: where they are, and who must hear that they are dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from sluicemq.protocol.errors import Dead
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.store import FailedParent, QueueStore


class FailedParents:
    """The queues of this broker, as the removal of a child sees them.

    What it tells is for those who wait at this broker: killed before that, they are gone with it, and other
    brokers find the dead letter, and the group that has no first, by themselves.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def store(self, queue: str) -> QueueStore:
        """The queue of this name."""
        return self._queues.open(queue).store

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """These are dead letters: their askers hear it, their groups go on."""
        for each in parents:
            queue = self._queues.open(each.queue)
            queue.freed(each.groups)
            queue.parent_ended(each.id, Dead(f"its {each.reason}"))
