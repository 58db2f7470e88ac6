"""Security: principals, their permissions, and the one question that every door asks."""

from sluicemq_broker.security import visible
from sluicemq_broker.security.authorize import ANYBODY, Caller, Principal, authorize
from sluicemq_broker.security.guard import DoorGuard
from sluicemq_broker.security.needs import NOTHING, Need, Needs
from sluicemq_broker.security.security import Security

__all__ = [
    "ANYBODY",
    "NOTHING",
    "Caller",
    "DoorGuard",
    "Need",
    "Needs",
    "Principal",
    "Security",
    "authorize",
    "visible",
]
