"""All settings, with default, rule and purpose; ``live`` ones can change while the broker runs.

::

    [broker]            BrokerSettings; each is also a variable and a flag of ``sluicemq serve``
    [queues."*"]        QueueSettings of every queue
    [queues.NAME]       QueueSettings of one, over those
    [streams."*"]       StreamSettings of every stream
    [streams.NAME]      StreamSettings of one, over those
    [[routes]]          RouteSettings
    [schedules.NAME]    ScheduleSettings: a recurring job
    [[devices]]         DeviceSettings, in device_settings.py
    [security]          SecuritySettings, in security_settings.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sluicemq.protocol.environment import PREFIX
from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.rules import BACKOFF_BOUNDS, BACKOFF_KINDS
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import MIB, file_of, flag, live, option, setting
from sluicemq_broker.config.door_settings import bound_door
from sluicemq_broker.config.mongo_uri import MongoUri
from sluicemq_broker.config.secrets import RedisUrl, Secret
from sluicemq_broker.job import Backoff, Misfire, OnExpiry, Timetable
from sluicemq_broker.runtime import of_time
from sluicemq_devices.sockets import Endpoint, tcp_address

#: MongoDB's documents end at 16 MiB; this leaves room for headers, result and history.
MAX_JOB_BYTES = 15 * MIB

#: Prefix of a variable; the name of a setting of [broker] follows, in capitals.
ENVIRONMENT = PREFIX
#: The port of the library's door, which those of the default devices follow, and the distance of the HTTP
#: port.
PORT, HTTP_PORT_AFTER = 5550, 30


def door(port: int, host: str = "127.0.0.1") -> Endpoint:
    """Return an endpoint that binds; ``*``: every interface."""
    return Endpoint(tcp_address("" if host == "*" else host, port), bind=True)


_BACKOFF = Backoff()


def _logs_in_otherwise(before: MongoUri | None, after: MongoUri | None) -> bool:
    return before is not None and before.differs_in_login_only(after)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """``[broker]``: the process, its MongoDB, its door for the library."""

    ports: int = setting(
        PORT,
        rules.whole(1, 65_535 - HTTP_PORT_AFTER),
        "the port of the library's door; the default devices have the seven after it, HTTP the one 30 higher",
    )
    endpoint: Endpoint = setting(door(PORT), bound_door, "the door of the library and the commands")
    host: str = setting("127.0.0.1", rules.host, "where the default doors listen")
    insecure: bool = flag(
        "other machines may reach all doors but HTTP although clients need no key there",
        default=False,
        live=True,
    )
    devices: bool = flag("open the doors of [[devices]], or of the default ones; false: none", default=True)
    http: str = setting(
        f"127.0.0.1:{PORT + HTTP_PORT_AFTER}",
        rules.http_address,
        'the HTTP door: health, metrics, API, dashboard; "" for none',
    )
    http_token: Secret | None = live(
        None,
        rules.secret,
        "a token that allows everything over HTTP; principals have tokens of their own",
    )
    http_token_file: Path | None = file_of("http_token", "that token", live=True)
    http_idle: float = live(
        1800.0, rules.seconds(above=0), "seconds without use after which a login to the dashboard ends"
    )
    http_tls_cert: Path | None = live(
        None, rules.file, "the certificate of the HTTP door with its chain (PEM): HTTPS only; SIGHUP reads it"
    )
    http_tls_key: Path | None = live(None, rules.file, "the key of that certificate (PEM, no password)")
    http_hosts: tuple[str, ...] = setting(
        (),
        rules.http_hosts,
        "names of a reverse proxy by which browsers reach the HTTP door, beside addresses and localhost",
    )
    http_insecure: bool = flag(
        "other machines may reach the HTTP door without TLS, and read there without a token",
        default=False,
        live=True,
    )
    mongodb_uri: MongoUri | None = setting(
        None,
        rules.mongodb_uri,
        "the MongoDB; without a URI the broker starts an embedded one in data_dir",
        live=_logs_in_otherwise,
    )
    mongodb_uri_file: Path | None = file_of("mongodb_uri", "that URI", live=True)
    database: str = setting("sluicemq", rules.database_name, "the MongoDB database")
    outboxes: tuple[str, ...] = setting(
        (),
        rules.database_names,
        "databases of applications, in the same MongoDB, whose collection sluicemq_outbox has posts that "
        "become jobs",
    )
    data_dir: Path | None = setting(
        None,
        rules.folder,
        "folder of the embedded MongoDB; by default the user's data folder, for /etc/sluicemq/sluicemq.toml "
        "/var/lib/sluicemq, for another file there a folder of its name in that",
    )
    embedded_cache: int = setting(
        0,
        rules.whole(0, unit="bytes"),
        "bytes of the embedded MongoDB's cache, at least 64 MiB; 0: a quarter of the memory, 1 GiB at most",
    )
    event_bus: rules.BusForm | RedisUrl = setting(
        rules.BusForm.AUTO,
        rules.event_bus,
        "how brokers that share a database hear of each other's jobs, pauses and messages at once: over that "
        "MongoDB (auto, unless it is embedded), within one process (local), over Redis, or not (off)",
    )
    event_bus_file: Path | None = file_of("event_bus", "the URL of that Redis")
    lease: float = setting(15.0, rules.seconds(above=0), "seconds a silent broker keeps its reservations")
    heartbeat: float = setting(
        2.0, rules.seconds(above=0), "seconds between signs of life to and from workers"
    )
    silence: float = setting(20.0, rules.seconds(above=0), "seconds of silence after which a worker is gone")
    max_job_bytes: int = setting(12 * MIB, rules.size(MAX_JOB_BYTES), "largest payload of a job")
    max_queues: int = live(1000, rules.whole(1), "queues that pushes may make")
    auto_create: bool = flag("a push to an unknown queue makes it", default=True, live=True)
    hwm: int = setting(10_000, rules.whole(1), "jobs of the library on their way to MongoDB, at most")
    hwm_bytes: int = setting(64 * MIB, rules.size(), "their bytes, at most")
    disk_reserve: int = live(
        1024 * MIB,
        rules.size(),
        "bytes of MongoDB's disk that stay free: with less, streams without a bound take no more messages",
    )
    stop_timeout: float = live(30.0, rules.seconds(), "seconds a stop waits for running jobs")
    metrics_detail: str = live(
        "histograms",
        rules.one_of("broker", "queues", "histograms"),
        "what /metrics splits: nothing by queue or stream (broker), counts and gauges by queue (queues), the "
        "durations of 50 queues, too (histograms)",
    )
    history: bool = flag("keep what is counted in each minute, hour and day, in MongoDB", default=True)
    history_retention: float = live(
        400 * 86_400.0, rules.seconds(above=0), "seconds for which hours and days of it are kept"
    )
    incident_retention: float = live(
        90 * 86_400.0, rules.seconds(above=0), "seconds for which incidents are kept"
    )
    audit_retention: float = live(
        90 * 86_400.0,
        rules.seconds(),
        "seconds for which administrative acts, logins and refusals are kept in MongoDB; 0: not at all",
    )
    max_connections: int | None = setting(
        None, rules.whole(1), "connections at once, at most; by default what the limit of open files allows"
    )
    max_connections_per_address: int | None = setting(
        None,
        rules.whole(1),
        "connections of one IPv4 address, or of 64 bits of IPv6, at most; by default any number, for a "
        "proxy, or a network behind one address, has many clients",
    )
    max_handshakes: int | None = setting(
        None,
        rules.whole(1),
        "unfinished handshakes at once, at most; by default a quarter of max_connections. One more ends the "
        "oldest of the address with the most",
    )
    allow_unsafe_store: bool = flag("accept a MongoDB that may lose confirmed jobs", default=False)
    log_level: str = live(
        "info", rules.one_of("debug", "info", "warning", "error"), "least level that is logged"
    )
    log_format: str = live("text", rules.one_of("text", "json"), "one line or one JSON object each")
    poll: float = setting(
        1.0,
        rules.seconds(above=0),
        "seconds between looks for what other brokers have done, beside the event bus; up to a quarter more",
    )


class Overflow(StrEnum):
    """Answer of a full queue to producers: it refuses their jobs, or lets them wait."""

    REFUSE = "refuse"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """``[queues.NAME]``: how the jobs of one queue are treated, unless their headers say otherwise."""

    database: str | None = setting(
        None, rules.database_name, "the MongoDB database; by default that of [broker]"
    )
    max_attempts: int = option("max_attempts")
    max_losses: int = live(
        20, rules.whole(1, 1_000_000), "brokers that may die with a job before it is a dead letter"
    )
    max_unanswered: int = live(
        5,
        rules.whole(1, 1_000_000),
        "deliveries that may end without an answer, as a worker died or let visibility_timeout pass, before "
        "a job is a dead letter",
    )
    visibility_timeout: float = option("visibility_timeout")
    soft_time_limit: float | None = live(
        None,
        OPTIONS["soft_time_limit"].rule,
        "seconds after which the handler of a job is interrupted, at most; jobs may have less",
    )
    hard_time_limit: float | None = live(
        None,
        OPTIONS["hard_time_limit"].rule,
        "seconds after which an attempt has failed, at most; a worker that does not end it is replaced",
    )
    kind_soft_time_limits: Mapping[str, float] | None = live(
        None, rules.kind_time_limits, "soft time limits of these kinds of jobs"
    )
    kind_hard_time_limits: Mapping[str, float] | None = live(
        None, rules.kind_time_limits, "hard time limits of these kinds of jobs"
    )
    backoff: str = option(
        "backoff",
        rules.one_of(*BACKOFF_KINDS),
        "how the wait grows after each failure; or linear, fixed, none",
    )
    backoff_base: float = live(_BACKOFF.base, rules.seconds(), "seconds after the first failure")
    backoff_factor: float = live(
        _BACKOFF.factor,
        rules.number(*BACKOFF_BOUNDS["factor"]),
        "by which an exponential wait grows each time",
    )
    backoff_cap: float = live(_BACKOFF.cap, rules.seconds(), "seconds, at most")
    backoff_jitter: float = live(
        _BACKOFF.jitter,
        rules.number(*BACKOFF_BOUNDS["jitter"]),
        "share of a wait that chance adds or takes off",
    )
    dead_retention: float = live(
        90 * 86_400.0,
        rules.seconds(),
        "seconds a dead letter is kept, with on_dead a day at least; then it is removed, and counted",
    )
    max_dead: int = live(
        1_000_000,
        rules.whole(1),
        "dead letters that are kept; of more the oldest are removed, and counted",
    )
    keep_done: float = option("keep_done")
    remember: float = live(300.0, rules.seconds(), "seconds a result can be asked for again by the job's id")
    priority: int = option("priority", doc="priority of jobs that name none; higher first")
    ttl: float | None = option("ttl")
    on_expiry: str = live(
        OnExpiry.DROP,
        rules.one_of(*OnExpiry),
        "an expired job is removed (drop), or becomes a dead letter (dead)",
    )
    on_dead: str | None = live(
        None,
        rules.queue_name,
        "the queue into which its dead letters move, for workers there; by default they stay",
    )
    delay: float = option("delay")
    dedupe_window: float = option("dedupe_window")
    fair: bool = flag(
        "take turns between tenants, or groups, so that a flood of one holds up no other",
        default=False,
        live=True,
    )
    weights: Mapping[str, int] | None = live(
        None, rules.weights, "jobs of these tenants in each round of a fair queue; other tenants have one"
    )
    max_running: int | None = live(
        None,
        rules.whole(1),
        "jobs that run at once, over all brokers, at most: at a worker, or on their way to one",
    )
    rate: float | None = live(
        None, rules.number(0.001, 1_000_000), "jobs that begin in a second, over all brokers, at most"
    )
    burst: int | None = live(
        None,
        rules.whole(1, 1_000_000),
        "jobs that may begin at once after a rest; by default those of a second",
    )
    tenant_max_running: int | None = live(
        None,
        rules.whole(1, 1_000_000),
        "jobs of each tenant of a fair queue that run at once, over all brokers, at most",
    )
    tenant_rate: float | None = live(
        None,
        rules.number(0.001, 1_000_000),
        "jobs of each tenant, or group, of a fair queue that begin in a second, over all brokers, at most",
    )
    tenant_burst: int | None = live(
        None,
        rules.whole(1, 1_000_000),
        "jobs of each tenant that may begin at once after a rest; by default those of a second",
    )
    max_ready: int | None = live(
        None, rules.whole(1), "jobs that wait, delayed ones too, before the queue is full"
    )
    max_bytes: int | None = live(
        None,
        rules.size(),
        "bytes of its jobs in MongoDB, kept ones and dead letters too, before the queue is full",
    )
    overflow: str = live(
        Overflow.REFUSE,
        rules.one_of(*Overflow),
        "a full queue answers QUEUE_FULL (refuse), or lets producers wait (hold); PUSH sockets always wait",
    )

    pack: bool = flag(
        "store plain jobs that come in one message in one document, which costs MongoDB a tenth",
        default=True,
        live=True,
    )

    @property
    def limited(self) -> bool:
        """True if fewer jobs may run, or begin, than its workers would take."""
        return self.max_running is not None or self.rate is not None or self.limits_tenants

    @property
    def packs(self) -> bool:
        """True if its jobs may lie in packs: all are handed out alike, and none is kept."""
        bounded = self.max_ready is not None or self.max_bytes is not None
        return self.pack and not (self.fair or self.limited or bounded or self.keep_done)

    @property
    def tokens(self) -> int:
        """Number of jobs that may begin at once after a rest."""
        return self.burst or max(1, round(self.rate or 0))

    @property
    def limits_tenants(self) -> bool:
        """True if each of its tenants has a limit."""
        return self.tenant_max_running is not None or self.tenant_rate is not None

    @property
    def retries(self) -> Backoff:
        """Back-off of jobs that failed."""
        numbers = (self.backoff_base, self.backoff_factor, self.backoff_cap, self.backoff_jitter)
        return Backoff(self.backoff, *numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """``[streams.NAME]``: how much of a stream is kept; without a bound, all of it."""

    @property
    def endless(self) -> bool:
        """True if no bound is set."""
        return self.max_age is None and self.max_messages is None and self.max_bytes is None

    @property
    def bounds(self) -> str:
        """Bounds in words; empty: there is none."""
        age = "" if self.max_age is None else of_time(self.max_age)
        messages = "" if self.max_messages is None else f"{self.max_messages:,} messages"
        size = "" if self.max_bytes is None else f"{self.max_bytes:,} bytes"
        return ", ".join(filter(None, (age, messages, size)))

    database: str | None = setting(
        None, rules.database_name, "the MongoDB database; by default that of [broker]"
    )
    max_age: float | None = setting(None, rules.seconds(above=0), "seconds for which a message is kept")
    max_messages: int | None = setting(None, rules.whole(1), "messages that are kept, the newest")
    max_bytes: int | None = setting(None, rules.size(), "bytes of messages that are kept")
    max_unread: int | None = setting(
        None, rules.whole(1), "messages kept, beyond these bounds, for subscriptions behind"
    )
    unread_retention: float = setting(
        30 * 86_400.0,
        rules.seconds(),
        "seconds for which they are kept for a subscription that nobody uses",
    )
    dedupe_window: float = setting(
        300.0, rules.seconds(above=0), "seconds in which a message's own id is not stored twice"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """``[[routes]]``: every message of a stream with these topics becomes a job, once."""

    stream: str = setting(MISSING, rules.stream_name, "the stream")
    topics: tuple[str, ...] = setting(
        (), rules.topics, "topics of the messages that become jobs, as a reader names them; by default all"
    )
    queue: str = setting(MISSING, rules.queue_name, "the queue of the jobs")
    subscription: str | None = setting(
        None,
        rules.subscription_name,
        "the subscription that keeps how far the route has come; by default route.QUEUE",
    )
    headers: Mapping[str, Any] | None = setting(
        None, rules.job_headers, "job options for all of them, as a producer gives them"
    )

    @property
    def name(self) -> str:
        """Name of its subscription."""
        return self.subscription or f"route.{self.queue}"[:LONGEST_NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """``[schedules.NAME]``: a recurring job, by ``cron`` or ``every``."""

    queue: str = setting(MISSING, rules.queue_name, "the queue of its jobs")
    payload: str = setting("", rules.text, "the payload of its jobs")
    cron: str | None = setting(None, rules.text, "minute hour day-of-month month day-of-week")
    timezone: str = setting("UTC", rules.text, "the time zone of the cron expression, as Europe/Berlin")
    every: float | None = setting(
        None, rules.seconds(above=0), "seconds from one run to the next, instead of cron"
    )
    misfire: str = setting(
        Misfire.ONE,
        rules.one_of(*Misfire),
        "missed runs that are made up for: none (skip), the last one (one), all",
    )
    options: Mapping[str, Any] | None = setting(
        None, rules.schedule_options, "options of its jobs, as { priority = 5 }"
    )

    @property
    def timetable(self) -> Timetable:
        """Times of its runs."""
        return Timetable(self.cron or "", self.timezone, self.every or 0.0)
