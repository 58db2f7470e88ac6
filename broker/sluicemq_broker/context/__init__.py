"""Services that every part of a broker needs: owner ids, the schema, retries, bounds of memory."""

from sluicemq_broker.context.context import Context, NotifyBrokers, no_other_broker
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.new_names import NewNames
from sluicemq_broker.context.owners import Owners
from sluicemq_broker.context.retry import Retry
from sluicemq_broker.context.schema import Schema, can_read
