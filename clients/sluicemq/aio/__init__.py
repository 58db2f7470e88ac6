"""SluiceMQ for asyncio: the words of :mod:`sluicemq`, awaited.

>>> from sluicemq.aio import Producer, Worker
>>> async with Producer() as producer:
...     receipt = await producer.push("thumbnails", b"cat.jpg")
...     await receipt
"""

from sluicemq.aio.claim import Claim, ClaimedJob
from sluicemq.aio.client import Client
from sluicemq.aio.confirming import PublishReceipt, PushReceipt
from sluicemq.aio.job import Job
from sluicemq.aio.operation import Operation
from sluicemq.aio.producer import Producer
from sluicemq.aio.publisher import Publisher
from sluicemq.aio.reader import Reader
from sluicemq.aio.reply import Reply
from sluicemq.aio.subscription import Subscription
from sluicemq.aio.worker import Worker

__all__ = [
    "Claim",
    "ClaimedJob",
    "Client",
    "Job",
    "Operation",
    "Producer",
    "PublishReceipt",
    "Publisher",
    "PushReceipt",
    "Reader",
    "Reply",
    "Subscription",
    "Worker",
]
