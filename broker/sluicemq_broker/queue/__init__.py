"""One queue whole, and all of them: what is pushed, who works, what is settled, who asks."""

from sluicemq_broker.queue.census import Census
from sluicemq_broker.queue.context import Context
from sluicemq_broker.queue.families import Families
from sluicemq_broker.queue.history import History
from sluicemq_broker.queue.incidents import Incidents
from sluicemq_broker.queue.intake import Push
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.on_dead import OnDead
from sluicemq_broker.queue.orders import Delete, Discard, Purge, Redrive
from sluicemq_broker.queue.owners import Owners
from sluicemq_broker.queue.queue import Queue
from sluicemq_broker.queue.queues import Queues, check_name, databases
from sluicemq_broker.queue.schedules import Schedules
from sluicemq_broker.queue.series import SPANS, Series
from sluicemq_broker.queue.sweeper import Sweeper
from sluicemq_broker.queue.tasks import Task, Tasks
from sluicemq_broker.queue.verdict import PLAIN, Onward, Settlement, Verdict, read_verdict
from sluicemq_broker.queue.worker import Delivery, Takes, Worker

__all__ = [
    "PLAIN",
    "SPANS",
    "Census",
    "Context",
    "Delete",
    "Delivery",
    "Discard",
    "Families",
    "History",
    "Incidents",
    "Memory",
    "OnDead",
    "Onward",
    "Owners",
    "Purge",
    "Push",
    "Queue",
    "Queues",
    "Redrive",
    "Schedules",
    "Series",
    "Settlement",
    "Sweeper",
    "Takes",
    "Task",
    "Tasks",
    "Verdict",
    "Worker",
    "check_name",
    "databases",
    "read_verdict",
]
