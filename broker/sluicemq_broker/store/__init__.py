"""MongoDB: all statements, its errors, and connections to it."""

from sluicemq_broker.store.admin.audit import MOST_AUDITED, AuditChoice, AuditKind, AuditRecord, AuditStore
from sluicemq_broker.store.admin.backlog import MOST_LOOKED_AT, Waiting, backlog
from sluicemq_broker.store.admin.changes import Changes
from sluicemq_broker.store.admin.collections import COLLECTIONS
from sluicemq_broker.store.admin.counting import COUNTED_EXACTLY
from sluicemq_broker.store.admin.damaged import damaged_documents
from sluicemq_broker.store.admin.dead_letters import UNKNOWN, DeadLetters, type_of
from sluicemq_broker.store.admin.history import HistoryStore, HistorySubject, MinuteCounts, day_of
from sluicemq_broker.store.admin.incidents import Incident, IncidentStore
from sluicemq_broker.store.admin.inspector import MOST_CUT, Inspector
from sluicemq_broker.store.admin.job_view import SHOWN_STATES
from sluicemq_broker.store.admin.kept import Disk, Measured, disk_of, measure
from sluicemq_broker.store.admin.latest_errors import LatestError, latest_errors
from sluicemq_broker.store.admin.listing import SAMPLE, JobPage, Listing
from sluicemq_broker.store.admin.logins import RENEWED as SECRET_RENEWED
from sluicemq_broker.store.admin.logins import LoginRecord, LoginStore, SigningSecret
from sluicemq_broker.store.admin.principals import (
    MOST_KEYS,
    KeyKind,
    PrincipalKey,
    PrincipalRecord,
    PrincipalStore,
)
from sluicemq_broker.store.admin.queue_records import ALL_QUEUES, QueueRecord, QueueRecordStore, Removing
from sluicemq_broker.store.admin.redrives import Redriven, Redrives
from sluicemq_broker.store.admin.removals import Removals
from sluicemq_broker.store.admin.revisions import Follower, Readable, Revised
from sluicemq_broker.store.admin.search import QUEUES_AT_ONCE, SLICE, Candidate, Search, Wanted, with_id
from sluicemq_broker.store.admin.server_facts import (
    ServerFacts,
    fixed_until,
    missing_indexes,
    ring_of_events,
    server_facts,
)
from sluicemq_broker.store.admin.tasks import TaskStore
from sluicemq_broker.store.availability import CONFIRMED_EVERY, EVERY, NoMajority, StoreAvailability, confirm
from sluicemq_broker.store.clock import ServerClock
from sluicemq_broker.store.cluster.configurations import ConfigurationStore, Said, Tables
from sluicemq_broker.store.cluster.event_ring import EventRing
from sluicemq_broker.store.cluster.figures import FigureStore
from sluicemq_broker.store.cluster.leases import LeaseStore, Seen
from sluicemq_broker.store.cluster.limits import LimitStore
from sluicemq_broker.store.cluster.schema import (
    READS,
    SCHEMA,
    HalfRestored,
    NewerSchema,
    SchemaNumbers,
    SchemaStore,
)
from sluicemq_broker.store.connection import (
    Documents,
    connect,
    connect_for_copies,
    connect_for_leases,
    options_left_out,
    require_safe,
)
from sluicemq_broker.store.copies.descriptions import Description
from sluicemq_broker.store.copies.history_window import Disturbed, HistoryWindow
from sluicemq_broker.store.copies.loading import RestoredDatabase
from sluicemq_broker.store.copies.snapshot import BackupSnapshot, LeftOut
from sluicemq_broker.store.errors import Doubtful, Refused, Unclear, UnsafeStore
from sluicemq_broker.store.halving import READ_AT_ONCE, by_bytes, in_halves
from sluicemq_broker.store.jobs.application_commits import (
    NotCommitted,
    confirm_ends,
    statements_of_end,
)
from sluicemq_broker.store.jobs.children import Child, FanOutEntry, end_children, fan_out
from sluicemq_broker.store.jobs.claims import Claim
from sluicemq_broker.store.jobs.documents import QueueDefaults, collection, stored_size
from sluicemq_broker.store.jobs.expiry import ExpiredJobs
from sluicemq_broker.store.jobs.failed_children import (
    DeadChild,
    FailedParent,
    RemovedJob,
    count_failed_children,
    dead_children,
    death_after,
    fail_parents,
    mark_parents_notified,
)
from sluicemq_broker.store.jobs.fair_order import FairOrder
from sluicemq_broker.store.jobs.forwards import ForwardEntry, forward
from sluicemq_broker.store.jobs.groups import Promoted
from sluicemq_broker.store.jobs.many_queues import Surveyed, oldest_deaths, survey_queues
from sluicemq_broker.store.jobs.missing_children import (
    count_missing_children,
    waiting_parents,
)
from sluicemq_broker.store.jobs.orders import ORDERS, is_another_order, order_of
from sluicemq_broker.store.jobs.outbox import OutboxStore, Post
from sluicemq_broker.store.jobs.outcomes import Completed, Found, Progressed, RolledBack
from sluicemq_broker.store.jobs.parents import EndedParent
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.priority_order import PriorityOrder, StagedByPriority
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.schedules import Schedule, ScheduleStore
from sluicemq_broker.store.jobs.transactions import Aborted, OfJob
from sluicemq_broker.store.logins import log_in_again
from sluicemq_broker.store.no_primary import why_no_primary
from sluicemq_broker.store.set_aside import ASIDE, SetAside
from sluicemq_broker.store.streams.routes import RouteStore
from sluicemq_broker.store.streams.segments import Head, Segment, Tail
from sluicemq_broker.store.streams.stream_store import GUARD, Appended, StreamKept, StreamStore, stream_names
from sluicemq_broker.store.streams.subscriptions import (
    MOST_SUBSCRIPTIONS,
    Holder,
    Subscription,
    SubscriptionStore,
)
from sluicemq_broker.store.values import DAY, date, seconds
from sluicemq_broker.store.write_results import Pushed
