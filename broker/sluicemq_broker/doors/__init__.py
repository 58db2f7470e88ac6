"""The doors of the broker: SMQ/1 for the library, REQ, REP, PUSH, PULL and SUB for plain sockets."""

from sluicemq_broker.doors.device import BrokerDevice, ForwarderDevice, QueueDevice, counts_of_device
from sluicemq_broker.doors.door_group import DoorGroup
from sluicemq_broker.doors.frames import read_name, split_envelope, without_probes
from sluicemq_broker.doors.refusals import error_frames, refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.admin_verbs import ADMIN_VERBS
from sluicemq_broker.doors.smq.assignments import ReadyRequest, read_ready
from sluicemq_broker.doors.smq.fields import (
    Fields,
    error_fields,
    job_entry,
    listed,
    progress_entry,
    take,
    verdict_entry,
)
from sluicemq_broker.doors.smq.sessions import VERBS, Session, SessionDoor
from sluicemq_broker.doors.smq.verbs import AdminVerb, SessionState, SessionVerb, Verbs
from sluicemq_broker.doors.smq.workers import more_about
