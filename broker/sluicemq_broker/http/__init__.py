"""The HTTP door: whether the broker is well, what it counts, an API, and the dashboard."""

from sluicemq_broker.http.door import HttpDoor, limited_connections
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.http.routes import Site

__all__ = ["HttpDoor", "Metrics", "Site", "limited_connections"]
