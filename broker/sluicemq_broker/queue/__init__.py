"""One queue, whole: what is pushed, who works, what is settled, who asks."""

from sluicemq_broker.queue.capacity import Counted
from sluicemq_broker.queue.decisions import (
    AwaitChildren,
    Commit,
    Decision,
    PassOn,
    Release,
    Return,
    on_death,
    on_hard_limit,
    on_refusal,
    on_time_out,
    on_verdict,
    reason_of_death,
)
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.handout import HandOut
from sluicemq_broker.queue.intake import Push
from sluicemq_broker.queue.job_maker import JobMaker, check_headers
from sluicemq_broker.queue.moves import MOST_RETURNED
from sluicemq_broker.queue.other_queues import MakeJob
from sluicemq_broker.queue.pace import Pace
from sluicemq_broker.queue.plans import WorkerMessage
from sluicemq_broker.queue.ports import OnStored, Pusher
from sluicemq_broker.queue.queue import Queue
from sluicemq_broker.queue.result_waiters import Outcome, StoredResult
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.time_limits import QueueTimeLimits
from sluicemq_broker.queue.times import Expiries
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
