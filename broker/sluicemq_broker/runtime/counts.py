"""The broker's counters, gauges and durations by name, with their meanings.

Counters of connections are in :class:`sluicemq_devices.hub.counts.Mishap`. The page ``docs/counters.md`` gets
its tables from both. A test finds a figure that is used by a literal, or declared and never used.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq.protocol.errors import SluiceError
from sluicemq_devices.hub import Metric

#: Counted for each queue or stream as well as for the whole broker, where the queue or stream is known.
_BY_QUEUE = ("queue",)
_BY_STREAM = ("stream",)


class Count(Metric):
    """Counters since the broker's start. ``DEAD`` counts dead letters, and refusals with that code."""

    # A job's way.
    RECEIVED = "received", "jobs and requests that came in at a door", "jobs"
    PUSHED = "pushed", "jobs stored", "jobs", _BY_QUEUE
    REPEATED = "repeated", "jobs not stored twice: their id was there already", "jobs", _BY_QUEUE
    DUPLICATES = "duplicates", "jobs refused because another has their dedupe_id", "jobs", _BY_QUEUE
    REFUSED = "refused", "readable jobs that were not stored", "jobs", _BY_QUEUE
    UNREADABLE = "unreadable", "jobs and requests that could not be read", "jobs"
    UNCLEAR = "unclear", "jobs stored or not: MongoDB gave no answer until the stop", "jobs", _BY_QUEUE
    JOBS_REFUSED = "jobs_refused", "jobs of PUSH sockets, which get no error, that were not stored", "jobs"
    DELIVERED = "delivered", "jobs given to workers", "jobs", _BY_QUEUE
    COMMITTED = "committed", "jobs done", "jobs", _BY_QUEUE
    FORWARDED = "forwarded", "jobs that their workers forwarded to another queue", "jobs", _BY_QUEUE
    FANNED_OUT = "fanned_out", "jobs that wait for children pushed by their workers", "jobs", _BY_QUEUE
    JOINED = "joined", "jobs ready once more, as their children have ended", "jobs", _BY_QUEUE
    CHILDREN = "children", "children pushed by workers of other jobs", "jobs", _BY_QUEUE
    UNCOMMITTED = "uncommitted", "commits not written, or without an answer", "jobs", _BY_QUEUE
    ROLLED_BACK = "rolled_back", "jobs given back as failed", "jobs", _BY_QUEUE
    REJECTED = "rejected", "jobs that a worker sent to the dead letters", "jobs", _BY_QUEUE
    RELEASED = "released", "jobs given back without counting the attempt", "jobs", _BY_QUEUE
    RETURNED = (
        "returned",
        "deliveries that count no attempt: not arrived, released, or worker or broker stopped",
        "jobs",
        _BY_QUEUE,
    )
    TAKEN_AWAY = "taken_away", "deliveries ended: another broker declared this one dead", "jobs", _BY_QUEUE
    TIMED_OUT = "timed_out", "deliveries whose visibility timeout has passed", "jobs", _BY_QUEUE
    EXPIRED = "expired", "jobs whose time to live ended before a worker took them", "jobs", _BY_QUEUE
    DEAD = "dead", "jobs that became dead letters", "jobs", _BY_QUEUE
    CANCELLED = "cancelled", "jobs cancelled", "jobs"
    OVER_LIMIT = "over_limit", "deliveries that did not end at their hard time limit", "jobs", _BY_QUEUE
    CANCELLED_AT_WORK = (
        "cancelled_at_work",
        "deliveries ended: their jobs were cancelled",
        "jobs",
        _BY_QUEUE,
    )
    PURGED = "purged", "jobs purged", "jobs"
    DEAD_REMOVED = (
        "dead_removed",
        "dead letters removed: older than dead_retention, or more than max_dead",
        "jobs",
        _BY_QUEUE,
    )
    REDRIVEN = "redriven", "dead letters made ready again", "jobs"
    DEAD_MOVED = "dead_moved", "dead letters moved to the queue of on_dead", "jobs", _BY_QUEUE
    DEAD_UNMOVED = "dead_unmoved", "times that dead letters could not be moved there yet", "times"

    WAITED = "waited", "sum of the times from acceptance to delivery", "ms", _BY_QUEUE
    WORKED = "worked", "sum of the times from delivery to verdict", "ms", _BY_QUEUE

    # Workers, and clients that wait for results.
    LATE_VERDICTS = "late_verdicts", "verdicts on deliveries that had ended", "verdicts", _BY_QUEUE
    BAD_VERDICTS = "bad_verdicts", "answers of workers that are no verdict", "verdicts"
    WORKERS_HUNG_UP = "workers_hung_up", "workers disconnected: they never answered", "workers", _BY_QUEUE
    WORKERS_STUCK = (
        "workers_stuck",
        "jobs whose handler goes on after its time: its worker takes no others meanwhile",
        "jobs",
        _BY_QUEUE,
    )
    SESSIONS_SILENT = "sessions_silent", "library sessions ended because nothing came", "sessions"
    SESSIONS_LEFT_BEHIND = (
        "sessions_left_behind",
        "library sessions ended because their client has gone on and repeats elsewhere what was not answered",
        "sessions",
    )
    ASKERS_GONE = "askers_gone", "requests whose client left before the answer", "questions"
    PROBES = "probes", "empty messages that some sockets send first", "messages"

    # Pops.
    POPS_UNDONE = "pops_undone", "popped jobs, kept as done, that were not sent: ready again", "jobs"
    RECURRED = "recurred", "jobs pushed by schedules", "jobs"
    PUSHED_ANEW = "pushed_anew", "popped jobs that were not sent: pushed again", "jobs"
    POPPED_LOST = "popped_lost", "times that popped jobs could not be stored again", "times", _BY_QUEUE

    # Brokers that share a database.
    GIVEN_BACK_BY_OTHERS = (
        "given_back_by_others",
        "jobs that another broker gave back first: this one was silent too long",
        "jobs",
        _BY_QUEUE,
    )
    CLAIMED = "claimed", "jobs reserved by claims: they had been stored as ready", "jobs", _BY_QUEUE
    CLAIMS_LOST = "claims_lost", "jobs that claims had read, and another broker took first", "jobs", _BY_QUEUE
    RECLAIMED = "reclaimed", "jobs of dead brokers, made ready again", "jobs"
    ORPHANS = "orphans", "reservations in MongoDB that this broker did not know: freed", "jobs"

    # The store.
    CLAIMS_REFUSED = "claims_refused", "claims that MongoDB refused", "claims", _BY_QUEUE
    UNREADABLE_DOCUMENTS = "unreadable_documents", "documents that are no jobs, set aside", "jobs", _BY_QUEUE
    SET_ASIDE = "set_aside", "documents, other than jobs, that can't be read: passed over", "documents"
    UNINDEXED = "unindexed", "indexes that could not be made", "indexes", _BY_QUEUE
    INDEXES_REMADE = "indexes_remade", "indexes of a wrong form, made again", "indexes", _BY_QUEUE
    DEDUPE_IDS_SHARED = "dedupe_ids_shared", "dedupe_ids that several jobs had", "ids", _BY_QUEUE
    STORE_UNAVAILABLE = "store_unavailable", "duties put off because MongoDB did not answer", "times"
    AUDIT_LOST = "audit_lost", "records of the audit that MongoDB did not take: only the log has them", "acts"
    TRANSACTIONS_ABORTED = (
        "transactions_aborted",
        "transactions that MongoDB ended for their age or size: the next ones have half as many jobs",
        "transactions",
    )
    RUNS_SKIPPED = "runs_skipped", "missed runs of schedules that were left out, as misfire says", "runs"
    SCHEDULES_FAILED = "schedules_failed", "runs of a schedule that could not be pushed yet", "runs"
    UNSWEPT = "unswept", "sweeps of a queue that failed", "sweeps"
    UNCOUNTED = "uncounted", "times that a queue's jobs could not be counted", "times"

    # Streams.
    RECEIVED_PUBLISHED = "received_published", "messages received from PUB sockets", "messages", _BY_STREAM
    PUBLISHED_LOST = "published_lost", "messages of PUB sockets that were not stored", "messages", _BY_STREAM
    PUBLISHED = "published", "messages stored in streams", "messages", _BY_STREAM
    PUBLISHED_AGAIN = "published_again", "messages already stored, by their id", "messages", _BY_STREAM
    PUBLISHED_BYTES = "published_bytes", "bytes of the messages stored in streams", "bytes", _BY_STREAM
    MESSAGES_READ = "messages_read", "messages of streams given to readers", "messages", _BY_STREAM
    READ_BYTES = "read_bytes", "bytes of the messages given to readers", "bytes", _BY_STREAM
    MESSAGES_GONE = "messages_gone", "messages removed before a reader had them", "messages", _BY_STREAM
    ROUTED = "routed", "jobs that routes made of messages", "jobs", _BY_QUEUE
    POSTED = "posted", "jobs carried from outboxes", "jobs"
    UNPOSTED = "unposted", "posts of outboxes that could not become jobs", "posts"
    UNROUTED = "unrouted", "messages that could not become jobs, or were removed before", "messages"
    LATE_WATERMARKS = "late_watermarks", "watermarks refused: the hold on a subscription had ended", "times"
    TRIMMED = "trimmed", "messages removed by TRIM and ERASE", "messages", _BY_STREAM
    SEGMENTS_REMOVED = "segments_removed", "segments removed by retention", "segments", _BY_STREAM
    TOPICS_FORGOTTEN = (
        "topics_forgotten",
        "topics whose last message a forwarder with `latest` keeps no longer: there are too many",
        "topics",
    )

    # The event bus.
    BUS_TOLD = "bus_told", "events sent to other brokers", "events"
    BUS_HEARD = "bus_heard", "events received from other brokers", "events"
    BUS_UNTOLD = "bus_untold", "times that events could not be sent: other brokers poll", "times"
    BUS_LOST = "bus_lost", "times that events of other brokers could not be received", "times"

    # The process.
    GATES_CLOSED = "gates_closed", "times that doors were not read: too much was on its way", "times"
    HTTP_BAD_REQUESTS = (
        "http_bad_requests",
        "connections of the HTTP door whose bytes are no request: another protocol, TLS that fails",
        "connections",
    )
    HTTP_CONNECTIONS_CUT = (
        "http_connections_cut",
        "HTTP connections closed to make room: too many were open",
        "connections",
    )
    HTTP_FAILURES = "http_failures", "HTTP requests on which the broker failed", "requests"
    HTTP_LOGINS_REFUSED = "http_logins_refused", "wrong tokens and passwords over HTTP", "times"
    SLOW_TURNS = "slow_turns", "turns of the hub that took too long", "turns"

    # Refusals by the code of their error.
    BAD_FRAMES = "bad_frames", "refused as BAD_FRAMES", "times"
    BAD_HEADERS = "bad_headers", "refused as BAD_HEADERS", "times"
    BAD_QUEUE = "bad_queue", "refused as BAD_QUEUE", "times"
    BAD_VERB = "bad_verb", "refused as BAD_VERB", "times"
    BAD_VERSION = "bad_version", "refused as BAD_VERSION", "times"
    TOO_LARGE = "too_large", "refused as TOO_LARGE, results too", "times", _BY_QUEUE
    QUEUE_FULL = "queue_full", "refused as QUEUE_FULL", "times"
    NAMES_REFUSED = "names_refused", "new queues, streams, subscriptions refused: too many were made", "times"
    PAUSED = "paused", "refused as PAUSED", "times"
    LEASE_LOST = "lease_lost", "refused as LEASE_LOST", "times"
    UNCERTAIN = "uncertain", "refused as UNCERTAIN", "times"
    DUPLICATE = "duplicate", "refused as DUPLICATE", "times"
    FORBIDDEN = "forbidden", "refused as FORBIDDEN: permissions don't allow it", "times"
    THROTTLED = (
        "throttled",
        "times that a connection was not read for a while: its principal sends more than its limits allow",
        "times",
    )
    NOT_FOUND = "not_found", "refused as NOT_FOUND", "times"
    BAD_STREAM = "bad_stream", "refused as BAD_STREAM", "times"
    BAD_TOPIC = "bad_topic", "refused as BAD_TOPIC", "times"
    CONFLICT = "conflict", "refused as CONFLICT", "times"
    GAP = "gap", "refused as GAP", "times"
    HELD = "held", "refused as HELD", "times"
    UNAVAILABLE = "unavailable", "refused as UNAVAILABLE", "times"
    TIMEOUT = "timeout", "refused as TIMEOUT", "times"
    DIFFERENT_STORE = "different_store", "refused as DIFFERENT_STORE", "times"
    OLD_BROKER = "old_broker", "refused as OLD_BROKER", "times"

    @classmethod
    def of(cls, error: SluiceError) -> Count:
        """Return the counter of refusals with this error."""
        return cls[error.code]


class Timing(Metric):
    """Durations, as histograms in ``/metrics``."""

    TIME_IN_QUEUE = "time_in_queue", "from a job's acceptance to its delivery, with delays", "s", _BY_QUEUE
    TIME_AT_WORKER = "time_at_worker", "from a job's delivery to the worker's verdict", "s", _BY_QUEUE
    PUSH_CONFIRMATION = "push_confirmation", "from reading a push to its being durable", "s", _BY_QUEUE
    HUB_DELAY = "hub_delay", "how late a timer of the hub runs: clients wait as long", "s"
    STATEMENT = "statement", "from sending a statement to MongoDB to its answer", "s", ("command",)

    @property
    def kind(self) -> str:
        """Durations are counted within bounds."""
        return "histogram"


class Gauge(Metric):
    """Present values, of the broker or of one queue; shown by ``stats`` and not stored."""

    UPTIME = "uptime", "since the broker's start", "s"
    BROKERS = "brokers", "brokers on its database, this one included", "brokers"
    CONNECTIONS = "connections", "connections open at all doors", "connections"
    HANDSHAKES = "handshakes", "connections of clients whose ZMTP handshake is not done", "connections"
    LONGEST_TURN = "longest_turn", "longest turn of its hub since the last request for it", "s"
    LONGEST_TURN_CPU = "longest_turn_cpu", "CPU time of the turn that computed longest since then", "s"
    STORE_SILENT = "store_silent", "time for which MongoDB has not answered a check; 0: it answers", "s"
    CERTIFICATE_LEFT = (
        "certificate_left",
        "time for which the HTTP door's certificate still holds, in /metrics only; below 0: it has expired",
        "s",
    )
    READY = "ready", "jobs that wait for a worker", "jobs", _BY_QUEUE
    SCHEDULED = "scheduled", "jobs that are not due yet", "jobs", _BY_QUEUE
    WAITING = (
        "waiting",
        "jobs that wait for an earlier one of their group, or for children",
        "jobs",
        _BY_QUEUE,
    )
    RESERVED = "reserved", "jobs at brokers and their workers", "jobs", _BY_QUEUE
    DONE = "done", "jobs that are done and kept", "jobs", _BY_QUEUE
    DEAD = "dead", "dead letters", "jobs", _BY_QUEUE
    OLDEST_READY_AGE = "oldest_ready_age", "time for which the oldest ready job is due", "s", _BY_QUEUE
    WORKERS = "workers", "workers at this broker", "workers", _BY_QUEUE
    IN_FLIGHT = "in_flight", "jobs at workers of this broker", "jobs", _BY_QUEUE
    PERMITS = "permits", "permits of its max_running that this broker has", "jobs", _BY_QUEUE
    HELD_BACK = "held_back", "tenants at their limit, whose jobs wait here", "tenants", _BY_QUEUE
    FULL = "full", "1 while it takes no more jobs, by its max_ready or max_bytes", "queues", _BY_QUEUE
    STORING = "storing", "jobs that came in and are being written", "jobs"
    COMMITTING = "committing", "jobs whose commit, forward, or removal by a pop is being written", "jobs"

    @property
    def kind(self) -> str:
        """Gauges go up and down."""
        return "gauge"


class Balance(NamedTuple):
    """An invariant: at any moment the inputs add up to as much as the outcomes."""

    inputs: tuple[Metric, ...]
    outcomes: tuple[Metric, ...]

    def __str__(self) -> str:
        """Return the equation."""
        return " = ".join(" + ".join(f"`{count}`" for count in side) for side in self)


#: Every job that comes in, also when the library repeats a push.
WAY_IN: Final = Balance(
    (
        *(Count.RECEIVED, Count.RECURRED, Count.ROUTED, Count.POSTED),
        *(Count.FORWARDED, Count.CHILDREN, Count.PUSHED_ANEW),
    ),
    (
        *(Count.PUSHED, Count.REPEATED, Count.DUPLICATES),
        *(Count.REFUSED, Count.UNREADABLE, Count.UNCLEAR, Gauge.STORING),
    ),
)
#: Every delivery. ``ROLLED_BACK`` counts those that timed out and those whose worker died, too.
WAY_OUT: Final = Balance(
    (Count.DELIVERED,),
    (
        *(Count.COMMITTED, Count.FORWARDED, Count.FANNED_OUT, Count.UNCOMMITTED),
        *(Count.ROLLED_BACK, Count.REJECTED, Count.RETURNED, Count.TAKEN_AWAY, Count.CANCELLED_AT_WORK),
        *(Gauge.IN_FLIGHT, Gauge.COMMITTING),
    ),
)
BALANCES: Final = (WAY_IN, WAY_OUT)
