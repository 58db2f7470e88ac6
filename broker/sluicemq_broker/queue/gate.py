"""True or false: a job may be handed out now."""

from __future__ import annotations

from sluicemq_broker.context import Context, HandsOut


class Gate:
    """Between what is staged for a queue's workers and the workers.

    Closed while the broker stops, while others may take it for dead, and while too much of this queue's has
    no answer from MongoDB: what is staged waits. A paused queue's goes back, as without workers.
    ``queue`` is who hears when there is room for verdicts again.
    """

    def __init__(self, context: Context, queue: HandsOut) -> None:
        self._stopping = False
        self.paused = False
        """True while it is: what is staged goes back."""
        self._owners = context.owners
        self._verdicts = context.memory.verdicts
        self._queue = queue

    def stop(self) -> None:
        """Nothing goes out any more: the broker stops."""
        self._stopping = True

    def pause(self, *, paused: bool) -> None:
        """The queue is paused, or resumed."""
        self.paused = paused

    @property
    def closed(self) -> bool:
        """True if nothing may go out now."""
        return self._stopping or not self._owners.sure or self._verdicts.is_full(self._queue)

    @property
    def open(self) -> bool:
        """True if whoever is free may get a job."""
        return not self.paused and not self.closed
