"""One queue, whole: what is pushed, who works, what is settled, who asks."""

from sluicemq_broker.queue.capacity import Counted
from sluicemq_broker.queue.intake import Push
from sluicemq_broker.queue.job_maker import JobMaker, check_headers
from sluicemq_broker.queue.other_queues import MakeJob
from sluicemq_broker.queue.ports import OnStored, Pusher
from sluicemq_broker.queue.queue import Queue
from sluicemq_broker.queue.result_waiters import Outcome, StoredResult
from sluicemq_broker.queue.verdict import (
    FAN_OUT_OPTIONS,
    MOST_CHILDREN,
    MOST_HEADERS,
    PLAIN,
    Onward,
    Settlement,
    Verdict,
    read_verdict,
)
from sluicemq_broker.queue.worker import Delivery, Marks, Worker
