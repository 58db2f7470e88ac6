"""The HTTP door: health, metrics, the API, and the paths that parts of the broker add."""

from sluicemq_broker.http.answers import Endless
from sluicemq_broker.http.door import HttpDoor, limited_connections
from sluicemq_broker.http.fair_turns import HubPace
from sluicemq_broker.http.metrics import Detail, Metrics
from sluicemq_broker.http.route import BASE, EVENT_STREAM, Call
from sluicemq_broker.http.routes import Site
from sluicemq_broker.http.tls import Tls
