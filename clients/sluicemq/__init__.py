"""SluiceMQ's client library: push jobs, work on them, look at the queues.

>>> from sluicemq import Producer, Worker
>>> with Producer() as producer:
...     producer.push("thumbnails", b"cat.jpg")
>>> Worker("thumbnails", lambda job: resize(job.payload)).run()

It works with threads and with gevent's greenlets. See :class:`Producer`, :class:`Worker` and :class:`Client`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluicemq._deprecated import module_names
from sluicemq.claim import Claim, ClaimedJob
from sluicemq.client import Client
from sluicemq.codec import JSON, Codec
from sluicemq.dead_letters import DeadLetterChoice
from sluicemq.forward import FanOut, Forward
from sluicemq.handlers import Handler
from sluicemq.job import ChildResult, Job
from sluicemq.message import Message
from sluicemq.namespaces import AuditChoice, Grants
from sluicemq.operation import Operation
from sluicemq.producer import Producer
from sluicemq.protocol.durations import Duration
from sluicemq.protocol.enums import Flow, JobState, Misfire, OperationState, Span
from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    BadStreamError,
    BadTopicError,
    BadVerbError,
    BadVersionError,
    CancelledError,
    ConflictError,
    DeadError,
    DifferentStoreError,
    DuplicateError,
    ExpiredError,
    ForbiddenError,
    ForkedError,
    GapError,
    HeldError,
    LeaseLostError,
    NotAdmittedError,
    NotFoundError,
    OldBrokerError,
    PausedError,
    QueueFullError,
    Reject,
    Requeue,
    Retry,
    SluiceError,
    TimeoutError,
    TooLargeError,
    UnavailableError,
    UncertainError,
    UnfinishedError,
)
from sluicemq.protocol.options import JobOptions, NewJob
from sluicemq.publisher import Publisher
from sluicemq.reader import Reader
from sluicemq.receipt import PublishReceipt, PushReceipt, Receipt
from sluicemq.reply import Reply
from sluicemq.start import Start
from sluicemq.subscription import Batch, Subscription
from sluicemq.time_limits import HardTimeLimitError, SoftTimeLimitError
from sluicemq.transport.access import Access
from sluicemq.worker import Worker

__all__ = [
    "JSON",
    "PREVIOUS",
    "Access",
    "App",
    "AuditChoice",
    "BadFramesError",
    "BadHeadersError",
    "BadQueueError",
    "BadStreamError",
    "BadTopicError",
    "BadVerbError",
    "BadVersionError",
    "Batch",
    "CancelledError",
    "ChildResult",
    "Claim",
    "ClaimedJob",
    "Client",
    "Codec",
    "ConflictError",
    "DeadError",
    "DeadLetterChoice",
    "DifferentStoreError",
    "DuplicateError",
    "Duration",
    "ExpiredError",
    "FanOut",
    "Flow",
    "ForbiddenError",
    "ForkedError",
    "Forward",
    "GapError",
    "Grants",
    "Handler",
    "HardTimeLimitError",
    "HeldError",
    "Job",
    "JobOptions",
    "JobState",
    "LeaseLostError",
    "Message",
    "Middleware",
    "Misfire",
    "NewJob",
    "NotAdmittedError",
    "NotFoundError",
    "OldBrokerError",
    "Operation",
    "OperationState",
    "PausedError",
    "Producer",
    "PublishReceipt",
    "Publisher",
    "PushReceipt",
    "QueueFullError",
    "Reader",
    "Receipt",
    "Reject",
    "Reply",
    "Requeue",
    "Retry",
    "Sentry",
    "SluiceError",
    "SoftTimeLimitError",
    "Span",
    "Start",
    "Step",
    "Subscription",
    "Task",
    "TaskRun",
    "TaskTimeoutError",
    "Telemetry",
    "TimeLimits",
    "TimeoutError",
    "TooLargeError",
    "UnavailableError",
    "UncertainError",
    "UnfinishedError",
    "Worker",
    "chain",
    "group",
]


def __dir__() -> list[str]:
    """Return what programs use, for completion."""
    return __all__


#: Names of 0.3, whose errors had no ``Error`` behind them; these are newer.
_NEWER: Final = {
    "CancelledError",
    "HardTimeLimitError",
    "SluiceError",
    "SoftTimeLimitError",
    "TaskTimeoutError",
}
_RENAMED: Final = {
    **{name[: -len("Error")]: name for name in __all__ if name.endswith("Error") and name not in _NEWER},
    "Published": "PublishReceipt",
    "Release": "Requeue",
    "Rollback": "Retry",
    "Seconds": "Duration",
}

if TYPE_CHECKING:
    from sluicemq.app import (
        PREVIOUS,
        App,
        Middleware,
        Sentry,
        Step,
        Task,
        TaskRun,
        TaskTimeoutError,
        Telemetry,
        TimeLimits,
        chain,
        group,
    )

if not TYPE_CHECKING:  # a checker of types tells of the old names
    _former = module_names(__name__, _RENAMED)

    def __getattr__(name: str) -> Any:
        """Return a name of :mod:`sluicemq.app`, or one of 0.3.

        Tasks are loaded when they are first used: asyncio takes longer than all else.
        """
        return getattr(import_module("sluicemq.app"), name) if name in __all__ else _former(name)
