"""Everything that is said to MongoDB: its statements, its errors, its connection."""

from sluicemq_broker.store.changes import Changes
from sluicemq_broker.store.children import Child, Ended, FanOut, end_children, fan_out
from sluicemq_broker.store.claims import Claim
from sluicemq_broker.store.connection import (
    Documents,
    Doubtful,
    Refused,
    ServerClock,
    Unclear,
    UnsafeStore,
    connect,
    connect_for_leases,
    require_safe,
)
from sluicemq_broker.store.counting import COUNTED_EXACTLY
from sluicemq_broker.store.documents import QueueDefaults, date, seconds, stored_size
from sluicemq_broker.store.expiry import ExpiredJobs
from sluicemq_broker.store.failed_children import (
    Bereaved,
    DeadChild,
    dead_children,
    death_after,
    fail_parents,
    told_parents,
)
from sluicemq_broker.store.forwards import Forward, forward
from sluicemq_broker.store.groups import Promoted
from sluicemq_broker.store.history import HistoryStore, MinuteCounts, Subject, day_of
from sluicemq_broker.store.incidents import Incident, IncidentStore
from sluicemq_broker.store.inserts import Pushed
from sluicemq_broker.store.inspect import Inspector, NewerSchema, collection
from sluicemq_broker.store.leases import LeaseStore, Seen
from sluicemq_broker.store.letters import DeadLetters
from sluicemq_broker.store.limits import LimitStore
from sluicemq_broker.store.listing import JobPage, Listing
from sluicemq_broker.store.lost_children import FamilyPage, bereft, families
from sluicemq_broker.store.no_primary import why_no_primary
from sluicemq_broker.store.outcomes import Completed, Found, Progressed, RolledBack
from sluicemq_broker.store.pauses import PauseStore
from sluicemq_broker.store.portions import Portions
from sluicemq_broker.store.queue_store import QueueStore
from sluicemq_broker.store.redrives import Redriven, Redrives
from sluicemq_broker.store.removals import Removals
from sluicemq_broker.store.ring import EventRing
from sluicemq_broker.store.routes import RouteStore
from sluicemq_broker.store.schedules import MOST_SCHEDULES, Schedule, ScheduleStore
from sluicemq_broker.store.segments import Head, Page, Segment, Tail
from sluicemq_broker.store.shown import SHOWN_STATES
from sluicemq_broker.store.state import EVERY, StoreState
from sluicemq_broker.store.streams import GUARD, Appended, StreamStore, stream_names
from sluicemq_broker.store.subscriptions import Holder, Subscription, SubscriptionStore
from sluicemq_broker.store.survey import Surveyed, survey_queues
from sluicemq_broker.store.tasks import TaskStore
from sluicemq_broker.store.transactions import Aborted

__all__ = [
    "COUNTED_EXACTLY",
    "EVERY",
    "GUARD",
    "MOST_SCHEDULES",
    "SHOWN_STATES",
    "Aborted",
    "Appended",
    "Bereaved",
    "Changes",
    "Child",
    "Claim",
    "Completed",
    "DeadChild",
    "DeadLetters",
    "Documents",
    "Doubtful",
    "Ended",
    "EventRing",
    "ExpiredJobs",
    "FamilyPage",
    "FanOut",
    "Forward",
    "Found",
    "Head",
    "HistoryStore",
    "Holder",
    "Incident",
    "IncidentStore",
    "Inspector",
    "JobPage",
    "LeaseStore",
    "LimitStore",
    "Listing",
    "MinuteCounts",
    "NewerSchema",
    "Page",
    "PauseStore",
    "Portions",
    "Progressed",
    "Promoted",
    "Pushed",
    "QueueDefaults",
    "QueueStore",
    "Redriven",
    "Redrives",
    "Refused",
    "Removals",
    "RolledBack",
    "RouteStore",
    "Schedule",
    "ScheduleStore",
    "Seen",
    "Segment",
    "ServerClock",
    "StoreState",
    "StreamStore",
    "Subject",
    "Subscription",
    "SubscriptionStore",
    "Surveyed",
    "Tail",
    "TaskStore",
    "Unclear",
    "UnsafeStore",
    "bereft",
    "collection",
    "connect",
    "connect_for_leases",
    "date",
    "day_of",
    "dead_children",
    "death_after",
    "end_children",
    "fail_parents",
    "families",
    "fan_out",
    "forward",
    "require_safe",
    "seconds",
    "stored_size",
    "stream_names",
    "survey_queues",
    "told_parents",
    "why_no_primary",
]
