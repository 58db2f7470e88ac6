"""The queues of this broker, as one of them sees the others: where its jobs go on to, and have parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job
from sluicemq_broker.queue.result_waiters import ResultSource
from sluicemq_broker.store import QueueStore

#: Makes a job of its queue's settings, payload, options and id; raises what is wrong with them.
MakeJob = Callable[[QueueSettings, bytes, Mapping[str, Any], str], Job]


class OtherQueue(ResultSource, Protocol):
    """Another queue: jobs can be put into it, and the ends of their children be told to it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def settings(self) -> QueueSettings: ...  # noqa: D102
    @property
    def store(self) -> QueueStore: ...  # noqa: D102

    def accept(self, jobs: list[Job]) -> float:
        """Number jobs that another statement than a push will store; returns when they were accepted."""

    def stored(self, jobs: Sequence[Job], existing: int) -> None:
        """It has stored these, and found others there."""

    def parent_ended(self, job_id: str, outcome: bytes | SluiceError) -> None:
        """All children of this job are done, and so is it; or one is a dead letter, and it is one, too."""

    def freed(self, groups: Iterable[str]) -> None:
        """The first job of each of these groups may have gone: the next may follow."""


class OtherQueues(Protocol):
    """The queues of this broker, by name, into which a job can go on."""

    def for_push(self, name: str, *, by: str, peer: str | None) -> OtherQueue:
        """The queue of this name, made if that is allowed."""

    def open(self, name: str) -> OtherQueue:
        """The queue of this name, known or not."""

    def make(
        self, settings: QueueSettings, payload: bytes, options: Mapping[str, Any], job_id: str, /
    ) -> Job:
        """A job of this queue; raises what is wrong with its options."""
