"""SluiceMQ's client library: push jobs, work on them, look at the queues.

>>> from sluicemq import Producer, Worker
>>> with Producer("tcp://127.0.0.1:5550") as producer:
...     producer.push("thumbnails", b"cat.jpg")
>>> Worker("tcp://127.0.0.1:5550", "thumbnails", lambda job: resize(job.payload)).run()

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
    "Subscription",
    "Timeout",
    "TooLarge",
    "Unavailable",
    "Uncertain",
    "Unfinished",
    "Worker",
]
