"""The parts of a broker, in the order in which they are put together."""

from sluicemq_broker.parts import audit, history, streams
from sluicemq_broker.parts.audit import AuditPart
from sluicemq_broker.parts.dashboard import DashboardPart
from sluicemq_broker.parts.history import HistoryPart
from sluicemq_broker.parts.kept import KeptPart
from sluicemq_broker.parts.outbox import OutboxPart
from sluicemq_broker.parts.streams import StreamsPart

PARTS = (StreamsPart, HistoryPart, AuditPart, KeptPart, OutboxPart, DashboardPart)
#: Permissions that the verbs of parts need.
NEEDS = {**audit.NEEDS, **history.NEEDS, **streams.NEEDS}
