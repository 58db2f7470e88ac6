"""Everything that is said to MongoDB: its statements, its errors, its connection."""

from sluicemq_broker.store.changes import Changes, DeadLetters
from sluicemq_broker.store.claims import Claim
from sluicemq_broker.store.connection import (
    Documents,
    Doubtful,
    Refused,
    ServerClock,
    Unclear,
    connect,
    connect_for_leases,
    require_safe,
)
from sluicemq_broker.store.documents import QueueDefaults, stored_size
from sluicemq_broker.store.inserts import Pushed
from sluicemq_broker.store.inspect import COUNTED_STATES, SHOWN_STATES, Inspector, collection
from sluicemq_broker.store.leases import LeaseStore
from sluicemq_broker.store.outcomes import Completed, Found, RolledBack
from sluicemq_broker.store.pauses import PauseStore
from sluicemq_broker.store.queue_store import QueueStore

__all__ = [
    "COUNTED_STATES",
    "SHOWN_STATES",
    "Changes",
    "Claim",
    "Completed",
    "DeadLetters",
    "Documents",
    "Doubtful",
    "Found",
    "Inspector",
    "LeaseStore",
    "PauseStore",
    "Pushed",
    "QueueDefaults",
    "QueueStore",
    "Refused",
    "RolledBack",
    "ServerClock",
    "Unclear",
    "collection",
    "connect",
    "connect_for_leases",
    "require_safe",
    "stored_size",
]
