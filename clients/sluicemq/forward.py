"""Where a job goes on: what a handler returns instead of a result."""

from __future__ import annotations

from typing import Any, Final, Unpack

from sluicemq import arguments
from sluicemq.headers import as_bytes, as_headers
from sluicemq.protocol.options import KEYWORDS, MOVE_OPTIONS, JobOptions

#: Children of one job, at most.
MOST_CHILDREN: Final = 1000
_NOT_FOR_MOVES: Final = sorted(KEYWORDS - MOVE_OPTIONS)


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
        arguments.text("queue", queue)
        queue = arguments.plain_text(queue)
        if given := [each for each in _NOT_FOR_MOVES if options.get(each) is not None]:
            raise TypeError(f"a job that is forwarded takes no {given[0]!r}")
        self.queue = queue
        self.payload = None if payload is None else as_bytes(payload)
        self.onward: list[Any] = [queue, self.payload, as_headers(options)[0]]
        """As a SETTLE has it."""

    def __repr__(self) -> str:
        what = "its payload" if self.payload is None else f"{len(self.payload)} bytes"
        return f"<Forward to {self.queue}, {what}>"


def as_sent(onward: list[Any]) -> list[Any]:
    """Return where a job goes on, as a SETTLE has it; what a handler has changed in it is checked, too."""
    queue, payload, headers = onward
    arguments.text("queue", queue)
    return [queue, None if payload is None else as_bytes(payload), headers]


class FanOut:
    """Returned by a worker's handler: the job waits for ``children``, new jobs, and is done when they are.

    Each is a :class:`Forward` to its queue; without a payload it has the job's. Their ids are the job's with
    ``.1``, ``.2`` and so on. ``result``: what the job has as its result then. Once a child is a dead letter
    the job is one, too.
    """

    __slots__ = ("onward", "result")

    def __init__(self, *children: Forward, result: bytes = b"") -> None:
        if not 1 <= len(children) <= MOST_CHILDREN:
            raise ValueError(f"a job has 1 to {MOST_CHILDREN} children, not {len(children)}")
        if wrong := [each for each in children if not isinstance(each, Forward)]:
            raise TypeError(f"a child is a Forward to its queue, not {type(wrong[0]).__name__}")
        self.onward: list[Any] = [each.onward for each in children]
        """As a SETTLE has it."""
        self.result = as_bytes(result)
