"""Where a job goes on: what a handler returns instead of a result."""

from __future__ import annotations

from typing import Any, Unpack

from sluicemq.headers import as_bytes, as_headers
from sluicemq.options import JobOptions


class Forward:
    """Returned by a worker's handler: the job goes on to another queue, with its id and its history.

    ``payload``: None is the one it has; ``options`` are those of :meth:`~sluicemq.Producer.push`, but for
    ``dedupe_id`` and ``dedupe_window``: what is not given stays as it is. Its attempts begin anew there.
    It is the same job: whoever waits for its result has the one of the last queue.

    Raises TypeError, or :class:`~sluicemq.BadHeaders`, for what can't be sent. What the broker refuses, as a
    queue that has a job of this id already, gives the job back, with that as its reason.
    """

    __slots__ = ("onward", "payload", "queue")

    def __init__(self, queue: str, payload: bytes | None = None, **options: Unpack[JobOptions]) -> None:
        if not isinstance(queue, str):
            raise TypeError(f"a queue is a str, not {type(queue).__name__}")
        if told := [each for each in ("dedupe_id", "dedupe_window") if options.get(each) is not None]:
            raise TypeError(f"a job that is forwarded takes no {told[0]!r}")
        self.queue = queue
        self.payload = None if payload is None else as_bytes(payload)
        self.onward: list[Any] = [queue, self.payload, as_headers(options)[0]]
        """As a SETTLE has it."""

    def __repr__(self) -> str:
        what = "its payload" if self.payload is None else f"{len(self.payload)} bytes"
        return f"<Forward to {self.queue}, {what}>"
