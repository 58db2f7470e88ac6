"""The MongoDB that a broker brings along."""

from sluicemq_broker.embedded.data_folder import uri_of_running
from sluicemq_broker.embedded.life import EmbeddedMongo
