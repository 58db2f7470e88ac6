"""Services that every part of a broker needs: owner ids, retries, bounds of memory, other brokers."""

from sluicemq_broker.context.context import Context, NotifyBrokers, no_other_broker
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.new_names import NewNames
from sluicemq_broker.context.owners import Owners
from sluicemq_broker.context.retry import Retry

__all__ = ["Context", "Memory", "NewNames", "NotifyBrokers", "Owners", "Retry", "no_other_broker"]
