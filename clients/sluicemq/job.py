"""A job as a worker's handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, Final, Self

from sluicemq import arguments
from sluicemq.protocol import wire
from sluicemq.protocol.durations import check_span, in_seconds
from sluicemq.protocol.options import OPTIONS, Seconds

#: Takes ``[done, total, note]`` of a job.
SendProgress = Callable[[Any, list[Any]], None]


class Job:
    """One delivery of a job.

    ``id``; ``payload``: bytes; ``headers``: the producer's own map; ``attempt``: 1 on the first
    delivery; ``max_attempts``: deliveries before it is dead, 0: no end; ``priority``; ``queue``; ``age``.

    For the tests of a handler make one yourself: ``Job(payload=b"cat.jpg")``; of all else there are
    defaults, and its ``extend`` and ``progress`` do nothing.
    """

    __slots__ = (
        "_accepted",
        "_extend",
        "_send_progress",
        "attempt",
        "came",
        "epoch",
        "headers",
        "id",
        "max_attempts",
        "payload",
        "priority",
        "queue",
        "receipt",
        "trace",
        "visibility_timeout",
    )

    trace: Any
    """The context of the span in which it is handled; not there without one."""

    def __init__(
        self,
        payload: bytes = b"",
        *,
        id: str = "id",  # noqa: A002 - the word that jobs use everywhere
        queue: str = "queue",
        headers: Mapping[str, Any] | None = None,
        attempt: int = 1,
        priority: int = OPTIONS["priority"].default,
        max_attempts: int = OPTIONS["max_attempts"].default,
        age: Seconds = 0.0,
    ) -> None:
        self.payload = payload
        self.id = id
        self.queue = queue
        self.headers: dict[str, Any] = dict(headers or {})
        self.attempt = attempt
        self.priority = priority
        self.max_attempts = max_attempts
        self.receipt = b""
        self.epoch = 0
        self.came = monotonic()
        self.visibility_timeout = inf
        self._accepted = self.came - in_seconds(age)
        self._extend: Callable[[Any, float], None] = _ignore
        self._send_progress: SendProgress = _ignore

    @classmethod
    def delivered(
        cls,
        queue: str,
        row: Sequence[Any],
        epoch: int,
        extend: Callable[[Any, float], None],
        send_progress: SendProgress,
        offset: float,
    ) -> Self:
        """A job of a DELIVER; ``ahead``: of this process's monotonic clock, before the broker's."""
        job = cls.__new__(cls)
        if len(row) != _ROW:
            row = _full_row(row, offset)
        (
            job.receipt, job.id, job.payload, headers, job.attempt, job.priority, accepted, job.max_attempts,
            job.visibility_timeout,
        ) = row  # fmt: skip
        job.queue = queue
        job.came = monotonic()
        job.headers = headers or {}
        job.epoch = epoch
        job._accepted = accepted + offset  # noqa: SLF001 - its own class
        job._extend = extend  # noqa: SLF001
        job._send_progress = send_progress  # noqa: SLF001
        return job

    @property
    def age(self) -> float:
        """Seconds since the broker accepted it, by the clock of its MongoDB."""
        return max(0.0, monotonic() - self._accepted)

    @property
    def begin_by(self) -> float:
        """When a handler should have begun it, on the monotonic clock: else it is given back."""
        return self.came + self.visibility_timeout * BEGIN_WITHIN

    @property
    def begins_late(self) -> bool:
        """True if enough of its time has passed that a handler which begins now should have it anew."""
        return monotonic() - self.came > self.visibility_timeout * BEGUN_LATE

    def renewed(self) -> None:
        """Count its time from now: the broker was asked to."""
        self.came = monotonic()

    def extend(self, seconds: Seconds) -> None:
        """Ask for ``seconds`` from now until the job must be settled; from its handler.

        Raises :class:`~sluicemq.LeaseLost` if the job is no longer this worker's.
        """
        check_span("seconds", seconds)
        self._extend(self, in_seconds(seconds))

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is, ``done`` of ``total``, for who looks; from its handler, as often as you like.

        About once a second the newest is sent, and noted at the broker; ``show`` tells it, and whoever asks
        for the result before there is one. Of ``note`` 200 characters are kept. It does not block, and
        nothing is said where the job is no longer this worker's: ``extend`` does. Raises TypeError or
        ValueError for what is no finite number up to 2**53, and no text.
        """
        arguments.number("done", done)
        if total is not None:
            arguments.number("total", total)
        self._send_progress(self, [done, total, arguments.words("note", note, wire.MOST_NOTE) or None])

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempt}, {len(self.payload)} bytes>"


#: Shares of a job's visibility timeout: within which a handler should have begun it, and after which its time
#: begins anew with the handler. The other half is for its way back, and for a clock that stood still.
BEGIN_WITHIN: Final = 0.5
BEGUN_LATE: Final = 0.02

#: Seconds between two messages about one job's progress.
PROGRESS_EACH: Final = 1.0

_ROW: Final = 9  # elements of a row that tells all of this


def _full_row(row: Sequence[Any], offset: float) -> Sequence[Any]:
    """Return a row with all elements: a newer broker tells more, an older one no timeout, or five at all."""
    if len(row) > _ROW:
        return row[:_ROW]
    return (*row, inf) if len(row) == _ROW - 1 else (*row[:5], 0, monotonic() - offset, 0, inf)


def clock_offset(fields: Sequence[Any]) -> float:
    """By how much this process's monotonic clock is before the broker's, as a DELIVER tells it."""
    now = fields[2] if len(fields) > 2 else None
    return monotonic() - now if isinstance(now, int | float) else 0.0


def _ignore(_job: Job, _value: object) -> None:
    """Nobody waits for a job that a test has made."""
