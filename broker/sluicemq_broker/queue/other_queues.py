"""The other queues of this broker, as a queue sees them: its jobs go on to them, or have parents there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job
from sluicemq_broker.security import Caller

if TYPE_CHECKING:
    from sluicemq_broker.queue.queue import Queue

#: Makes a caller's job of its queue's settings, payload, options and id; raises what is wrong with them.
MakeJob = Callable[[Caller, QueueSettings, bytes, Mapping[str, Any], str | None], Job]


class OtherQueues(Protocol):
    """The queues of this broker by their names."""

    def for_push(self, name: str, *, by: str, peer: str | None, caller: Caller) -> Queue:
        """Return the queue of this name; it is made if that is allowed, else raises why not."""

    def open(self, name: str) -> Queue:
        """Return the queue of this name, known or not."""

    def make(
        self,
        caller: Caller,
        settings: QueueSettings,
        payload: bytes,
        options: Mapping[str, Any],
        job_id: str,
        /,
    ) -> Job:
        """Make a caller's job with these settings of its queue; raises what is wrong with its options."""
