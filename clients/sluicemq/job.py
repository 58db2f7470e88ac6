"""A job as a worker's handler sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Job:
    """One delivery of a job.

    ``id``; ``payload``: bytes; ``headers``: the producer's own map; ``attempt``: 1 on the first
    delivery; ``queue``.
    """

    __slots__ = ("_extend", "attempt", "epoch", "headers", "id", "payload", "queue", "receipt")

    def __init__(
        self,
        queue: str,
        row: tuple[bytes, str, bytes, dict[str, Any] | None, int],
        epoch: int,
        extend: Callable[[Job, float], None],
    ) -> None:
        self.queue = queue
        self.receipt, self.id, self.payload, headers, self.attempt = row
        self.headers = headers or {}
        self.epoch = epoch
        self._extend = extend

    def extend(self, seconds: float) -> None:
        """Ask for ``seconds`` from now until the job must be settled; from its handler.

        Raises :class:`~sluicemq.LeaseLost` if the job is no longer this worker's.
        """
        self._extend(self, seconds)

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempt}, {len(self.payload)} bytes>"
