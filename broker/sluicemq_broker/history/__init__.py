"""History: what was counted in each minute, and incidents; written and read for all brokers together."""

from sluicemq_broker.history.history import History
from sluicemq_broker.history.incidents import Incidents
from sluicemq_broker.history.series import Series
