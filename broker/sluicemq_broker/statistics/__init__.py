"""What is told of queues: how much is in them, what has been, what is out of the ordinary."""

from sluicemq_broker.statistics.census import Census
from sluicemq_broker.statistics.history import History
from sluicemq_broker.statistics.incidents import Incidents
from sluicemq_broker.statistics.series import SPANS, Series

__all__ = ["SPANS", "Census", "History", "Incidents", "Series"]
