"""Administration: what is read of a broker and changed at it, for the library's door and for HTTP."""

from sluicemq_broker.admin.admin import Admin
from sluicemq_broker.admin.broker import BrokerAdmin
from sluicemq_broker.admin.dead_letters import CHOICE, MOST_LISTED, DeadLetterAdmin
from sluicemq_broker.admin.devices import Device, DeviceAdmin
from sluicemq_broker.admin.figures import Figures
from sluicemq_broker.admin.find import Finder
from sluicemq_broker.admin.jobs import READ_PACKED_SENT, JobAdmin
from sluicemq_broker.admin.principals import PrincipalAdmin, at_broker, at_store
from sluicemq_broker.admin.queues import OF_ON_DEAD, OF_REDRIVE, QueueAdmin, redrive_needs
from sluicemq_broker.admin.schedules import ScheduleAdmin
from sluicemq_broker.admin.snapshots import Snapshot, Snapshots, View, visible_in_turns
