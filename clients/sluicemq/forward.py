"""Forward and FanOut: a handler returns one of them instead of a result."""

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

    ``payload``: None keeps the job's payload. ``options`` are those of :meth:`~sluicemq.Producer.push`
    without ``dedupe_id`` and ``dedupe_window``; options that are not given are kept. The job's attempts begin
    again. A client that waits for its result gets the result of the last queue.

    Raises TypeError, or :class:`~sluicemq.BadHeadersError`, for values that can't be sent. If the broker
    refuses, for instance because that queue has a job with this id, the job is given back, with the refusal
    as its reason.
    """

    __slots__ = ("onward", "payload", "queue")

    def __init__(self, queue: str, payload: bytes | None = None, **options: Unpack[JobOptions]) -> None:
        arguments.text("queue", queue)
        queue = arguments.plain_text(queue)
        if given := [option for option in _NOT_FOR_MOVES if options.get(option) is not None]:
            raise TypeError(f"a job that is forwarded takes no {given[0]!r}")
        self.queue = queue
        self.payload = None if payload is None else as_bytes(payload)
        self.onward: list[Any] = [queue, self.payload, as_headers(options)[0]]
        """The fields of a SETTLE."""

    def __repr__(self) -> str:
        what = "its payload" if self.payload is None else f"{len(self.payload)} bytes"
        return f"<Forward to {self.queue}, {what}>"


def as_sent(onward: list[Any]) -> list[Any]:
    """Return the fields of a SETTLE, checked: a handler may have changed them."""
    queue, payload, headers = onward
    arguments.text("queue", queue)
    return [queue, None if payload is None else as_bytes(payload), headers]


class FanOut:
    """Returned by a worker's handler: the job waits for ``children``, new jobs, and is done when they are.

    Each child is a :class:`Forward` to its queue; without a payload it has the job's payload. The children's
    ids are the job's id with ``.1``, ``.2`` and so on. ``result``: the job's result then. If a child becomes
    a dead letter, the job does too.

    ``join``: when the children are done the job is delivered once more, with their results in
    :attr:`Job.children <sluicemq.Job>`. What the handler returns then is the job's result.
    ``allow_failures``: a child that fails counts as one that is done, with its reason as its error.
    """

    __slots__ = ("onward", "options", "result")

    def __init__(
        self, *children: Forward, result: bytes = b"", join: bool = False, allow_failures: bool = False
    ) -> None:
        if not 1 <= len(children) <= MOST_CHILDREN:
            raise ValueError(f"a job has 1 to {MOST_CHILDREN} children, not {len(children)}")
        if wrong := [child for child in children if not isinstance(child, Forward)]:
            raise TypeError(f"a child is a Forward to its queue, not {type(wrong[0]).__name__}")
        self.onward: list[Any] = [child.onward for child in children]
        """The fields of a SETTLE."""
        if join and result:
            raise ValueError("a job that is joined has the result of its second delivery: leave this one out")
        options = {"join": join, "allow_failures": allow_failures}
        self.options: dict[str, Any] = {name: True for name, chosen in options.items() if chosen}
        self.result = as_bytes(result)
