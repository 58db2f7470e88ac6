"""Parents that died, or ended, because a child was removed, or failed."""

from __future__ import annotations

from collections.abc import Sequence

from sluicemq.protocol.errors import DeadError
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.store import EndedParent, FailedParent, QueueStore


class FailedParents:
    """The queues of this broker, for the removal of children.

    A broker killed before :meth:`on_parents_failed` takes its waiting clients with it. Other brokers find the
    dead letters, and groups without a head, by themselves.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def store(self, queue: str) -> QueueStore:
        """Return the store of a queue."""
        return self._queues.open(queue).store

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """Answer clients that wait for these parents, and let their groups go on."""
        for parent in parents:
            queue = self._queues.open(parent.queue)
            queue.groups.freed(parent.groups)
            queue.endings.parent_ended(parent.id, DeadError(f"its {parent.reason}"))

    def on_parents_ended(self, parents: Sequence[EndedParent]) -> None:
        """Answer clients that wait for parents that are done, and have those worked on that are ready."""
        for parent in parents:
            self._queues.open(parent.queue).parent_ended(parent)
