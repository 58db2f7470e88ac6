"""All queues of a broker: found and made, counted and swept, changed in bulk, pushed to by schedules."""

from sluicemq_broker.queues.bulk_operations import Delete, Discard, Purge, Redrive
from sluicemq_broker.queues.census import Census
from sluicemq_broker.queues.disagreements import (
    Difference,
    Disagreements,
    differences,
    differences_of_brokers,
)
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.fleet import Fleet
from sluicemq_broker.queues.on_dead import OnDead
from sluicemq_broker.queues.one_push import push_one
from sluicemq_broker.queues.queues import Queues, check_name
from sluicemq_broker.queues.retention import DeadRetention
from sluicemq_broker.queues.schedules import Schedules
from sluicemq_broker.queues.sweeper import Sweeper
from sluicemq_broker.queues.tasks import Task, Tasks
