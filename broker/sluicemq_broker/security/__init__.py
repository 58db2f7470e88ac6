"""Security: principals, their permissions, and the one question that every door asks."""

from sluicemq_broker.security import visible
from sluicemq_broker.security.authorize import (
    ANYBODY,
    Caller,
    Need,
    Principal,
    authorize,
    may_stay,
    may_use,
    named,
)
from sluicemq_broker.security.guard import DoorGuard
from sluicemq_broker.security.needs import NOTHING, Needs
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
    "may_stay",
    "may_use",
    "named",
    "visible",
]
