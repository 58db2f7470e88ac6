"""The event bus: brokers that share a database notify each other of changes at once."""

from sluicemq_broker.bus.bus import Channel, EventBus, silent
from sluicemq_broker.bus.event import BusEvent, BusKind
from sluicemq_broker.bus.local import LocalTransport
from sluicemq_broker.bus.redis import RedisTransport
from sluicemq_broker.bus.transport import Feed, Transport
