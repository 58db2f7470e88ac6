"""Errors that SluiceMQ reports: one base, one sentence and one stable wire code each.

The broker raises them and sends ``code`` and text over the wire. The library raises them again on the other
side (:func:`from_code`).
"""

from __future__ import annotations

import builtins

from sluicemq.protocol.durations import Duration, delay_of


class SluiceError(Exception):
    """Base of all errors; ``code`` goes over the wire, with ``detail`` if there is one."""

    code = "UNAVAILABLE"
    meant = ""
    """Name of a queue that may have been meant: for those only who may know of that queue."""
    changes_nothing = False
    """True for a request that only reads: nothing of it can still be under way."""

    @property
    def detail(self) -> str:
        """Return the wire text of the error's own attribute; empty: it has none."""
        return ""


class BadFramesError(SluiceError):
    """A message has the wrong number or kind of frames."""

    code = "BAD_FRAMES"


class BadHeadersError(SluiceError, ValueError):
    """A job's headers can't be read, or hold an unknown key, a wrong type or a value out of range."""

    code = "BAD_HEADERS"


class BadQueueError(SluiceError):
    """A queue's name is not allowed, or the queue does not exist and may not be made."""

    code = "BAD_QUEUE"


class BadVerbError(SluiceError):
    """The broker does not know this request."""

    code = "BAD_VERB"


class BadVersionError(SluiceError):
    """The peer speaks another version of the protocol, or another protocol."""

    code = "BAD_VERSION"


class TooLargeError(SluiceError):
    """A job is larger than the broker takes."""

    code = "TOO_LARGE"


class QueueFullError(SluiceError):
    """The broker can't take more queues, streams, subscriptions or jobs of this kind now."""

    code = "QUEUE_FULL"


class PausedError(SluiceError):
    """The queue takes no jobs now: its intake is paused."""

    code = "PAUSED"


class LeaseLostError(SluiceError):
    """The job is no longer reserved under this receipt: another worker has it."""

    code = "LEASE_LOST"


class UncertainError(SluiceError):
    """The job is gone; it can't be known whether this verdict or another one ended it."""

    code = "UNCERTAIN"


class DeadError(SluiceError):
    """The job is among the dead letters."""

    code = "DEAD"


class ExpiredError(SluiceError):
    """The job's time to live ran out before a worker took it."""

    code = "EXPIRED"


class DuplicateError(SluiceError):
    """A job with this dedupe_id was pushed within the window; ``id`` is the id of that job."""

    code = "DUPLICATE"

    def __init__(self, message: str = "", id: str = "") -> None:  # noqa: A002 - the field's name everywhere
        super().__init__(message)
        self.id = id

    @property
    def detail(self) -> str:
        """Return the id of the first job."""
        return self.id


class ForbiddenError(SluiceError):
    """The principal may not do this here; the text names it, the action and the queue or stream."""

    code = "FORBIDDEN"


class NotAdmittedError(ForbiddenError):
    """The broker does not let this client in; the text says what it wants: a key, another one, a password."""


class NotFoundError(SluiceError):
    """There is no such job or queue."""

    code = "NOT_FOUND"


class CancelledError(NotFoundError):
    """The job was cancelled; raised to who waits for its result, and in its handler."""

    code = "CANCELLED"


class BadStreamError(SluiceError):
    """A stream's name is not allowed, or the stream does not exist and may not be made."""

    code = "BAD_STREAM"


class BadTopicError(SluiceError):
    """A topic is too long, or a pattern of topics can't be read."""

    code = "BAD_TOPIC"


class ConflictError(SluiceError):
    """The stream, or the topic in it, does not end where it was expected to; ``last``: its last number."""

    code = "CONFLICT"

    def __init__(self, message: str = "", last: int = 0) -> None:
        super().__init__(message)
        self.last = last

    @property
    def detail(self) -> str:
        """Return the number of the last message."""
        return str(self.last)


class GapError(SluiceError):
    """Messages ``first`` to ``last`` of a stream were removed before this reader had them."""

    code = "GAP"

    def __init__(self, message: str = "", first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last

    @property
    def missing(self) -> int:
        """Return how many messages were missed."""
        return self.last - self.first + 1


class HeldError(SluiceError):
    """A subscription is held by another, or for another kind of work; the text says by whom."""

    code = "HELD"

    def __init__(self, message: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """The kind of work that the subscription is held for."""

    @property
    def detail(self) -> str:
        """Return the kind of work."""
        return self.kind


class UnavailableError(SluiceError):
    """The broker, or its MongoDB, can't be reached or is stopping."""

    code = "UNAVAILABLE"


class ForkedError(UnavailableError):
    """An object belongs to the process that this one was forked from, and can't be used here."""


class TimeoutError(SluiceError, builtins.TimeoutError):  # noqa: A001 - it is one
    """No answer came in the time given."""

    code = "TIMEOUT"

    def __init__(self, message: str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.id = id
        """The id of the job. The job may be stored: a push with this id does not make a second one."""


class UnfinishedError(TimeoutError):
    """The broker goes on with a bulk operation as the task ``task``: ``done`` of ``total`` jobs so far.

    ``total`` is None where the number is not known.
    """

    def __init__(self, message: str = "", task: str = "", done: int = 0, total: int | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.done = done
        self.total = total


class DifferentStoreError(SluiceError):
    """Two queues lie in different MongoDB deployments, so no transaction can join them."""

    code = "DIFFERENT_STORE"


class OldBrokerError(SluiceError):
    """A broker that runs can't read the schema to which the store is to be raised; the text names it."""

    code = "OLD_BROKER"


class Reject(Exception):
    """Raised by a worker's handler: the job becomes a dead letter at once, with this text."""


class Retry(Exception):
    """Raised by a worker's handler: the job is given back, and is delivered again after ``delay``.

    ``delay`` is in seconds, a ``timedelta`` or a text such as 5m, counted from the moment at which the broker
    receives it. 0 or less means at once, None means the job's back-off. Raises TypeError or ValueError for
    any other value.
    """

    def __init__(self, reason: str = "", delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = delay_of("delay", delay)


class Requeue(Exception):
    """Raised by a worker's handler that can't begin: the job is given back as if never delivered.

    The attempt is not counted. The job may be delivered again, also to this worker, after ``delay`` seconds
    (or a ``timedelta`` or text) from when the broker receives it: 0 or less means at once, None a second, so
    that a handler that can't begin does not get it again without end. Raises TypeError or ValueError for any
    other value.
    """

    def __init__(self, reason: str = "", delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = delay_of("delay", delay)


_BY_CODE = {kind.code: kind for kind in SluiceError.__subclasses__()}
_BY_CODE[CancelledError.code] = CancelledError


def from_code(code: str, message: str, detail: str = "") -> SluiceError:
    """Return the exception for a wire code; an unknown code (of a newer broker) stays in the text.

    ``detail``: the id of a :class:`DuplicateError`, the last number of a :class:`ConflictError`, the kind of
    a :class:`HeldError`.
    """
    if code == DuplicateError.code:
        return DuplicateError(message, detail)
    if code == ConflictError.code:
        return ConflictError(message, int(detail) if detail.isdecimal() else 0)
    if code == HeldError.code:
        return HeldError(message, detail)
    kind = _BY_CODE.get(code)
    return kind(message) if kind else SluiceError(f"{code}: {message}")
