"""SluiceMQ's client library: push jobs, work on them, look at the queues.

>>> from sluicemq import Producer, Worker
>>> with Producer() as producer:
...     producer.push("thumbnails", b"cat.jpg")
>>> Worker("thumbnails", lambda job: resize(job.payload)).run()

It works with threads and with gevent's greenlets. See :class:`Producer`, :class:`Worker` and :class:`Client`.
"""

from sluicemq.claim import Claim, ClaimedJob
from sluicemq.client import Client
from sluicemq.forward import FanOut, Forward
from sluicemq.job import Job
from sluicemq.message import Message, Published
from sluicemq.producer import Producer
from sluicemq.protocol.errors import (
    BadFrames,
    BadHeaders,
    BadQueue,
    BadStream,
    BadTopic,
    BadVerb,
    BadVersion,
    Conflict,
    Dead,
    DifferentStore,
    Duplicate,
    Expired,
    Forbidden,
    Forked,
    Gap,
    Held,
    LeaseLost,
    NotAdmitted,
    NotFound,
    OldBroker,
    Paused,
    QueueFull,
    Reject,
    Release,
    Rollback,
    SluiceError,
    Timeout,
    TooLarge,
    Unavailable,
    Uncertain,
    Unfinished,
)
from sluicemq.protocol.options import JobOptions, NewJob, Seconds
from sluicemq.publisher import Publisher
from sluicemq.reader import Reader
from sluicemq.receipt import Receipt
from sluicemq.reply import Reply
from sluicemq.start import Start
from sluicemq.subscription import Batch, Subscription
from sluicemq.transport.access import Access
from sluicemq.worker import Worker

__all__ = [
    "Access",
    "BadFrames",
    "BadHeaders",
    "BadQueue",
    "BadStream",
    "BadTopic",
    "BadVerb",
    "BadVersion",
    "Batch",
    "Claim",
    "ClaimedJob",
    "Client",
    "Conflict",
    "Dead",
    "DifferentStore",
    "Duplicate",
    "Expired",
    "FanOut",
    "Forbidden",
    "Forked",
    "Forward",
    "Gap",
    "Held",
    "Job",
    "JobOptions",
    "LeaseLost",
    "Message",
    "NewJob",
    "NotAdmitted",
    "NotFound",
    "OldBroker",
    "Paused",
    "Producer",
    "Published",
    "Publisher",
    "QueueFull",
    "Reader",
    "Receipt",
    "Reject",
    "Release",
    "Reply",
    "Rollback",
    "Seconds",
    "SluiceError",
    "Start",
    "Subscription",
    "Timeout",
    "TooLarge",
    "Unavailable",
    "Uncertain",
    "Unfinished",
    "Worker",
]
