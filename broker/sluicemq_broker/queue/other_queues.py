"""The other queues of this broker, as a queue sees them: its jobs go on to them, or have parents there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.security import Caller
from sluicemq_broker.store import QueueStore

#: Makes a caller's job of its queue's settings, payload, options and id; raises what is wrong with them.
MakeJob = Callable[[Caller, QueueSettings, bytes, Mapping[str, Any], str], Job]


class OtherQueue(Protocol):
    """Another queue: it takes in jobs, and its parents hear how their children have ended."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def settings(self) -> QueueSettings: ...  # noqa: D102
    @property
    def store(self) -> QueueStore: ...  # noqa: D102
    @property
    def results(self) -> ResultWaiters: ...  # noqa: D102

    def accept(self, jobs: list[Job]) -> float:
        """Number jobs that a transaction is to store in the queue; returns when they were accepted."""

    def stored(self, jobs: Sequence[Job], existing: int) -> None:
        """Jobs were stored in the queue, and ``existing`` others were there before."""

    def parent_ended(self, job_id: str, outcome: bytes | SluiceError) -> None:
        """A parent is done, with this result, as its last child is; or dead, as a child is."""

    def freed(self, groups: Iterable[str]) -> None:
        """The first job of each of these groups may have ended: the next may be promoted."""


class OtherQueues(Protocol):
    """The queues of this broker by their names."""

    def for_push(self, name: str, *, by: str, peer: str | None, caller: Caller) -> OtherQueue:
        """Return the queue of this name; it is made if that is allowed, else raises why not."""

    def open(self, name: str) -> OtherQueue:
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
