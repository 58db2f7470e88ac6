"""Jobs as a worker's handler sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from sluicemq import arguments, transaction
from sluicemq.codec import CONTENT_TYPE, JSON, Codec, codec_of, decoded
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.protocol.errors import CancelledError, LeaseLostError
from sluicemq.protocol.options import OPTIONS

#: Sends ``[done, total, note]`` of a job.
SendProgress = Callable[[Any, list[Any]], None]


class ChildResult(NamedTuple):
    """The end of a child of a job: its ``result``, or None and the ``error`` by which it has none.

    An error that begins with ``TOO_LARGE`` is of a child that is done: all children of a job may return 1 MiB
    to it.
    """

    id: str
    result: bytes | None
    error: str = ""


class Job:
    """One delivery of a job.

    ``id``; ``payload``: bytes; ``headers``: the producer's own map; ``attempt``: 1 on the first delivery;
    ``max_attempts``: deliveries before it is dead, 0: no limit; ``priority``; ``queue``; ``age``.
    ``children``: how each child has ended, on the second delivery of a job that joins its children; None: on
    any other.

    For tests of a handler make one yourself: ``Job(payload=b"cat.jpg")``. Everything else has a default, and
    ``extend`` and ``progress`` do nothing.
    """

    __slots__ = (
        "_accepted",
        "_extend",
        "_send_progress",
        "attempt",
        "began",
        "came",
        "children",
        "committed",
        "epoch",
        "headers",
        "id",
        "interrupt",
        "max_attempts",
        "payload",
        "priority",
        "queue",
        "receipt",
        "source",
        "time_limits",
        "trace",
        "visibility_timeout",
    )

    children: tuple[ChildResult, ...] | None

    trace: Any
    """The context of the handler's span; unset without one."""

    committed: bytes | None
    """The result with which a transaction of its handler ends it; None: there is no such transaction."""

    time_limits: tuple[float | None, float | None] | None
    """The soft and the hard one in force, in seconds, as its broker has said them; None: none."""

    interrupt: Callable[[type[Exception]], object]
    """Raises an error in its handler; unset for a job without time limits."""

    source: Any
    """The worker's part that has this job from its broker; None for a job that no worker got."""

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
        age: Duration = 0.0,
        children: Iterable[ChildResult] | None = None,
    ) -> None:
        self.payload = payload
        self.id = id
        self.queue = queue
        self.headers: dict[str, Any] = dict(headers or {})
        self.attempt = attempt
        self.priority = priority
        self.max_attempts = max_attempts
        self.children = None if children is None else tuple(children)
        self.receipt = b""
        self.epoch = 0
        self.source = self.committed = self.time_limits = None
        self.came = monotonic()
        self.visibility_timeout = inf
        self.began = self.came
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
        """Return a job of a DELIVER; ``offset``: this process's monotonic clock minus the broker's clock."""
        job = cls.__new__(cls)
        job.children = job.time_limits = None
        if len(row) != _ROW:
            if len(row) > _ROW and row[_ROW] is not None:
                job.children = tuple(ChildResult(child[0], child[1], child[2] or "") for child in row[_ROW])
            if len(row) > _ROW + 1:
                soft, hard = row[_ROW + 1]
                job.time_limits = soft, hard
            row = _full_row(row, offset)
        (
            job.receipt, job.id, job.payload, headers, job.attempt, job.priority, accepted, job.max_attempts,
            job.visibility_timeout,
        ) = row  # fmt: skip
        job.queue = queue
        job.began = job.came = monotonic()
        job.headers = headers or {}
        job.epoch = epoch
        job.source = job.committed = None
        job._accepted = accepted + offset
        job._extend = extend
        job._send_progress = send_progress
        return job

    @property
    def content_type(self) -> str | None:
        """Return the type of the payload's content, if the producer has named it (``push_json`` does)."""
        found = self.headers.get(CONTENT_TYPE)
        return found if isinstance(found, str) else None

    def value(self) -> Any:
        """Return the payload as the codec decodes it: that of its content type, else of the worker or claim.

        Raises ValueError for a payload that is none, and for a content type of neither.
        """
        codec = codec_of(self.content_type, self._codec, f"the content type of job {self.id}")
        return decoded(codec, self.payload, f"the payload of job {self.id}")

    def json(self) -> Any:
        """Return the payload, which is JSON; raises ValueError for other bytes."""
        return decoded(JSON, self.payload, f"the payload of job {self.id}")

    def text(self) -> str:
        """Return the payload, which is text in UTF-8; raises ValueError for other bytes."""
        return self.payload.decode()

    @property
    def _codec(self) -> Codec:
        found: Codec = getattr(self.source, "codec", JSON)
        return found

    @property
    def is_held(self) -> bool:
        """Return whether the connection that delivered it lives: else its broker has taken it back."""
        return self.source is not None and bool(self.source.holds(self))

    @property
    def is_cancelled(self) -> bool:
        """Return whether the job was cancelled: its handler should end, whatever it returns is dropped."""
        return self.source is not None and bool(self.source.is_cancelled(self))

    def check(self) -> None:
        """Raise :class:`~sluicemq.CancelledError` if the job was cancelled; from its handler."""
        if self.is_cancelled:
            raise CancelledError(f"job {self.id} should end: {self.source.why_cancelled(self)}")

    @property
    def age(self) -> float:
        """Return the seconds since the broker accepted it, by the clock of its MongoDB."""
        return max(0.0, monotonic() - self._accepted)

    @property
    def begin_by(self) -> float:
        """Return the monotonic time at which it is given back if no handler has begun it."""
        return self.came + self.visibility_timeout * BEGIN_WITHIN

    @property
    def begins_late(self) -> bool:
        """Return whether a handler that begins now should get its time again: much of it has passed."""
        return monotonic() - self.came > self.visibility_timeout * BEGUN_LATE

    @property
    def extend_by(self) -> float:
        """Return the monotonic time at which a job that is kept is extended."""
        # Share of its visibility timeout after which it is extended
        return self.came + self.visibility_timeout / 3

    def renewed(self) -> None:
        """Count its time from now: the broker extends it."""
        self.came = monotonic()

    def extend(self, seconds: Duration) -> None:
        """Extend the job's time to ``seconds`` from now; from its handler.

        Raises :class:`~sluicemq.LeaseLostError` if the job is no longer this worker's.
        """
        check_span("seconds", seconds)
        return self._extend(self, in_seconds(seconds))

    def keep_extending(self) -> None:
        """Extend the job's time again and again until its handler ends; from its handler.

        For a handler that watches something live, such as a process: nothing else bounds its time then. Jobs
        that no worker's handler has are not extended.
        """
        if self.source is not None:
            self.source.keep_extending(self)

    def commit_in(self, session: Any, result: bytes | None = None) -> None:
        """End the job within the transaction of a pymongo ``session``, as the last statement of it.

        The job is done exactly if the transaction commits, and then with ``result``; what the handler returns
        is not used any more. The session is of the MongoDB that the broker uses. Raises
        :class:`~sluicemq.LeaseLostError` if the job is no longer this worker's, RuntimeError outside of a
        transaction, :class:`~sluicemq.DifferentStoreError` for another MongoDB, and the errors of pymongo.
        Let them leave the transaction, which aborts it.
        """
        ending = transaction.Ending(self, session, result, awaits=False)
        if self.receipt:
            try:
                self._send_end(ending, session)
            except Exception as error:
                if transaction.is_conflict(error):
                    self._statements_of_end(len(ending.result))  # raises if the job is another's by now
                raise
        self.committed = ending.result

    def _send_end(self, ending: transaction.Ending, session: Any) -> None:
        own = True
        for collection, which, update in ending.updates(self._statements_of_end(len(ending.result))):
            if not collection.update_one(which, update, session=session).matched_count:
                self._statements_of_end(len(ending.result))
                raise ending.not_found(own=own)
            own = False

    def _statements_of_end(self, size: int) -> bytes:
        """Ask the broker how the job ends with a result of ``size`` bytes."""
        ask: Callable[[Job, int], bytes] | None = getattr(self.source, "statements_of_end", None)
        if ask is None:
            raise LeaseLostError(f"job {self.id} was popped: it is not in MongoDB any more")
        return ask(self, size)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress, ``done`` of ``total``; from the job's handler, as often as you like.

        The newest report is sent about once a second and stored at the broker. ``show`` displays it, and
        clients that wait for the result get it before. ``note`` is cut to 200 characters. The call does not
        block, and does not say whether the job is still this worker's: ``extend`` does. Raises
        :class:`~sluicemq.CancelledError` as :meth:`check` does; and TypeError or ValueError for numbers that
        are not finite or beyond 2**53, and for a note that is no text.
        """
        self.check()
        arguments.number("done", done)
        if total is not None:
            arguments.number("total", total)
        self._send_progress(self, [done, total, arguments.words("note", note, wire.MOST_NOTE) or None])

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempt}, {len(self.payload)} bytes>"


#: Shares of a job's visibility timeout: a handler should begin it within the first. If it begins after the
#: second, the time is extended. The rest is for the verdict's way back, and for a clock that stood still.
BEGIN_WITHIN: Final = 0.5
BEGUN_LATE: Final = 0.02


#: Duration between two messages about one job's progress.
PROGRESS_EACH: Final = 1.0

_ROW: Final = 9  # elements of a complete row


def _full_row(row: Sequence[Any], offset: float) -> Sequence[Any]:
    """Return a complete row: a newer broker sends more, an older one no timeout, or five elements only."""
    if len(row) > _ROW:
        return row[:_ROW]
    return (*row, inf) if len(row) == _ROW - 1 else (*row[:5], 0, monotonic() - offset, 0, inf)


def clock_offset(fields: Sequence[Any]) -> float:
    """Return this process's monotonic clock minus the broker's clock, as a DELIVER has it."""
    now = fields[2] if len(fields) > 2 else None
    return monotonic() - now if isinstance(now, int | float) else 0.0


def _ignore(_job: Job, _value: object) -> None:
    """Do nothing: a test has made the job."""
