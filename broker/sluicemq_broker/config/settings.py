"""Every setting: its default, its rule, what it is for, and whether a running broker takes another one.

::

    [broker]            BrokerSettings; each is also a variable and a flag of ``sluicemq serve``
    [queues."*"]        QueueSettings of every queue
    [queues.NAME]       QueueSettings of one, over those
    [streams."*"]       StreamSettings of every stream
    [streams.NAME]      StreamSettings of one, over those
    [[routes]]          RouteSettings
    [schedules.NAME]    ScheduleSettings: a recurring job
    [[devices]]         DeviceSettings; once there is one, the default devices are not there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from sluicemq.options import OPTIONS
from sluicemq.wire import LONGEST_NAME
from sluicemq_broker.config import rules
from sluicemq_broker.config.mongo_uri import MongoUri
from sluicemq_broker.config.redis_url import RedisUrl
from sluicemq_broker.config.secret import Secret
from sluicemq_broker.job import BOUNDS, KINDS, Backoff, Misfire, OnExpiry, Timetable
from sluicemq_devices.doors import Endpoint, tcp_address
from sluicemq_devices.relays import Kind

MIB = 2**20

#: MongoDB's documents end at 16 MiB; this leaves room for headers, result and history.
MAX_JOB_BYTES = 15 * MIB

#: A variable is named so, and then as the setting of [broker], in capitals.
ENVIRONMENT = "SLUICEMQ_"
#: Of the library's door; those of the default devices follow it.
PORT = 5550


class Ack(StrEnum):
    """When a job of a PULL worker is done: its ZeroMQ has it, before it is sent, or the worker says so."""

    RECEIVED = "received"
    AUTO = "auto"
    EXPLICIT = "explicit"


#: Settings of a device that only some kinds have: the others' workers take one job at a time, or none.
ONLY = {
    "queue": (Kind.STREAMER, Kind.QUEUE),
    "stream": (Kind.FORWARDER,),
    "replay": (Kind.FORWARDER,),
    "latest": (Kind.FORWARDER,),
    "auto_create": (Kind.STREAMER, Kind.QUEUE),
    "commit": (Kind.STREAMER,),
    "ack": (Kind.STREAMER,),
    "prefetch": (Kind.STREAMER,),
}


def _setting(default: Any, rule: rules.Rule, doc: str, *, key: str | None = None, live: bool = False) -> Any:
    """One setting: its default (MISSING if it must be given), what it may be, what it is for.

    ``key`` is how it is written where that differs from the attribute's name; ``live``: a running broker
    takes another value when it is told to read its file again.
    """
    return field(default=default, metadata={"rule": rule, "doc": doc, "key": key, "live": live})


def _option(name: str, rule: rules.Rule | None = None, doc: str = "") -> Any:
    """The setting that gives a job's option to those without it: its default, bounds and words.

    ``rule``: where a queue says it in several settings, or may say nothing.
    """
    option = OPTIONS[name]
    return _setting(option.default, rule or rules.of_option(option), doc or option.doc, live=True)


def door(port: int, host: str = "127.0.0.1") -> Endpoint:
    """An address to bind; of ``*``, every interface."""
    return Endpoint(tcp_address("" if host == "*" else host, port), bind=True)


_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """``[broker]``: the process, its MongoDB, its door for the library."""

    endpoint: Endpoint = _setting(
        door(PORT), rules.bound_endpoint, "the door of the library and the commands"
    )
    host: str = _setting("127.0.0.1", rules.host, "where the default doors listen")
    http: str = _setting(
        "127.0.0.1:5580",
        rules.http_address,
        'the HTTP door: health, metrics, API, dashboard; "" for none. Whoever reaches it can read payloads',
    )
    http_token: Secret | None = _setting(
        None,
        rules.optional(rules.secret),
        "whoever knows it may change something over HTTP; without it nobody may",
    )
    mongodb_uri: MongoUri | None = _setting(
        None, rules.optional(rules.mongodb_uri), "without one: an embedded MongoDB in data_dir"
    )
    database: str = _setting("sluicemq", rules.database_name, "the MongoDB database")
    data_dir: Path | None = _setting(
        None,
        rules.optional(rules.folder),
        "folder of the embedded MongoDB; by default the user's data folder",
    )
    event_bus: rules.BusForm | RedisUrl = _setting(
        rules.BusForm.AUTO,
        rules.event_bus,
        "how brokers that share a database hear of each other's jobs, pauses and messages at once: over that "
        "MongoDB (auto, unless it is embedded), within one process (local), over Redis, or not (off)",
    )
    lease: float = _setting(15.0, rules.seconds(above=0), "seconds a silent broker keeps its reservations")
    heartbeat: float = _setting(
        2.0, rules.seconds(above=0), "seconds between signs of life to and from workers"
    )
    silence: float = _setting(6.0, rules.seconds(above=0), "seconds of silence after which a worker is gone")
    max_job_bytes: int = _setting(12 * MIB, rules.size(MAX_JOB_BYTES), "largest payload of a job")
    max_queues: int = _setting(1000, rules.whole(1), "queues that pushes may make", live=True)
    auto_create: bool = _setting(
        default=True, rule=rules.flag, doc="a push to an unknown queue makes it", live=True
    )
    hwm: int = _setting(10_000, rules.whole(1), "jobs of the library on their way to MongoDB, at most")
    hwm_bytes: int = _setting(64 * MIB, rules.size(), "their bytes, at most")
    stop_timeout: float = _setting(30.0, rules.seconds(), "seconds a stop waits for running jobs", live=True)
    history: bool = _setting(
        default=True, rule=rules.flag, doc="keep what is counted in each minute, hour and day, in MongoDB"
    )
    max_connections: int | None = _setting(
        None, rules.optional(rules.whole(1)), "by default what the limit of open files allows"
    )
    allow_unsafe_store: bool = _setting(
        default=False, rule=rules.flag, doc="accept a MongoDB that may lose confirmed jobs"
    )
    log_level: str = _setting(
        "info", rules.one_of("debug", "info", "warning", "error"), "least level that is logged", live=True
    )
    log_format: str = _setting(
        "text", rules.one_of("text", "json"), "one line or one JSON object each", live=True
    )
    poll: float = _setting(
        1.0,
        rules.seconds(above=0),
        "seconds between looks for what other brokers have done, whatever was told; or up to a quarter more",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """``[queues.NAME]``: how the jobs of one queue are treated, unless their headers say otherwise."""

    database: str | None = _setting(
        None, rules.optional(rules.database_name), "the MongoDB database; by default that of [broker]"
    )
    max_attempts: int = _option("max_attempts")
    max_losses: int = _setting(
        20, rules.whole(1, 1_000_000), "brokers that may die with a job before it is a dead letter", live=True
    )
    visibility_timeout: float = _option("visibility_timeout")
    backoff: str = _option(
        "backoff", rules.one_of(*KINDS), "how the wait grows after each failure; or linear, fixed, none"
    )
    backoff_base: float = _setting(
        _BACKOFF.base, rules.seconds(), "seconds after the first failure", live=True
    )
    backoff_factor: float = _setting(
        _BACKOFF.factor,
        rules.number(*BOUNDS["factor"]),
        "by which an exponential wait grows each time",
        live=True,
    )
    backoff_cap: float = _setting(_BACKOFF.cap, rules.seconds(), "seconds, at most", live=True)
    backoff_jitter: float = _setting(
        _BACKOFF.jitter,
        rules.number(*BOUNDS["jitter"]),
        "share of a wait that chance adds or takes off",
        live=True,
    )
    dead_retention: float | None = _setting(
        None,
        rules.optional(rules.seconds()),
        "seconds a dead letter is kept; by default until it is purged",
        live=True,
    )
    keep_done: float = _option("keep_done")
    remember: float = _setting(
        300.0, rules.seconds(), "seconds a result can be asked for again by the job's id", live=True
    )
    priority: int = _option("priority", doc="of jobs that name none; higher first")
    ttl: float | None = _option("ttl", rules.optional(rules.of_option(OPTIONS["ttl"])))
    on_expiry: str = _setting(
        OnExpiry.DROP,
        rules.one_of(*OnExpiry),
        "what becomes of it then: removed, or a dead letter",
        live=True,
    )
    on_dead: str | None = _setting(
        None,
        rules.optional(rules.queue_name),
        "the queue into which its dead letters go, for consumers there; by default they stay",
        live=True,
    )
    delay: float = _option("delay")
    dedupe_window: float = _option("dedupe_window")
    fair: bool = _setting(
        default=False,
        rule=rules.flag,
        doc="goes round its tenants, or groups, so that a flood of one holds up no other one",
        live=True,
    )
    weights: Mapping[str, int] | None = _setting(
        None,
        rules.optional(rules.weights),
        "jobs of these tenants in each round of a fair queue; one of all others",
        live=True,
    )
    max_running: int | None = _setting(
        None,
        rules.optional(rules.whole(1)),
        "jobs that run at once, over all brokers, at most: at a worker, or on their way to one",
        live=True,
    )
    rate: float | None = _setting(
        None,
        rules.optional(rules.number(0.001, 1_000_000)),
        "jobs that begin in a second, over all brokers, at most",
        live=True,
    )
    burst: int | None = _setting(
        None,
        rules.optional(rules.whole(1, 1_000_000)),
        "jobs that may begin at once after a rest; by default those of a second",
        live=True,
    )
    tenant_max_running: int | None = _setting(
        None,
        rules.optional(rules.whole(1, 1_000_000)),
        "of each tenant of a fair queue, jobs that run at once, over all brokers, at most",
        live=True,
    )
    tenant_rate: float | None = _setting(
        None,
        rules.optional(rules.number(0.001, 1_000_000)),
        "of each tenant, or group, of a fair queue, jobs that begin in a second, over all brokers, at most",
        live=True,
    )
    tenant_burst: int | None = _setting(
        None,
        rules.optional(rules.whole(1, 1_000_000)),
        "of each tenant, jobs that may begin at once after a rest; by default those of a second",
        live=True,
    )
    max_ready: int | None = _setting(
        None,
        rules.optional(rules.whole(1)),
        "jobs that wait, delayed ones too, before the queue is full",
        live=True,
    )
    max_bytes: int | None = _setting(
        None,
        rules.optional(rules.size()),
        "bytes of its jobs in MongoDB, kept ones and dead letters too, before the queue is full",
        live=True,
    )
    overflow: str = _setting(
        "refuse",
        rules.one_of("refuse", "hold"),
        "what a full queue does to those who push: QUEUE_FULL, or they wait; PUSH sockets always wait",
        live=True,
    )

    @property
    def tokens(self) -> int:
        """Jobs that may begin at once after a rest."""
        return self.burst or max(1, round(self.rate or 0))

    @property
    def turns(self) -> tuple[object, ...]:
        """All that says whose turn it is, and for how much."""
        return (self.fair, self.weights, self.tenant_max_running, self.tenant_rate, self.tenant_burst)

    @property
    def limits_tenants(self) -> bool:
        """Whether its tenants are limited, each for itself."""
        return self.tenant_max_running is not None or self.tenant_rate is not None

    @property
    def retries(self) -> Backoff:
        """How long a job that failed waits."""
        numbers = (self.backoff_base, self.backoff_factor, self.backoff_cap, self.backoff_jitter)
        return Backoff(self.backoff, *numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """``[streams.NAME]``: what of one stream is kept; without a bound, all of it."""

    database: str | None = _setting(
        None, rules.optional(rules.database_name), "the MongoDB database; by default that of [broker]"
    )
    max_age: float | None = _setting(
        None, rules.optional(rules.seconds(above=0)), "seconds for which a message is kept"
    )
    max_messages: int | None = _setting(
        None, rules.optional(rules.whole(1)), "messages that are kept, the newest"
    )
    max_bytes: int | None = _setting(None, rules.optional(rules.size()), "their bytes that are kept")
    max_unread: int | None = _setting(
        None, rules.optional(rules.whole(1)), "messages kept, beyond these bounds, for subscriptions behind"
    )
    dedupe_window: float = _setting(
        300.0, rules.seconds(above=0), "seconds in which a message's own id is not stored twice"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """``[[routes]]``: every message of a stream with these topics becomes a job, once."""

    stream: str = _setting(MISSING, rules.stream_name, "whose messages")
    topics: tuple[str, ...] = _setting(
        (), rules.topics, "of them those with these topics, as a reader names them; by default all"
    )
    queue: str = _setting(MISSING, rules.queue_name, "where they become jobs")
    subscription: str | None = _setting(
        None,
        rules.optional(rules.subscription_name),
        "the name under which it is kept how far it has come; by default route.QUEUE",
    )
    headers: Mapping[str, Any] | None = _setting(
        None, rules.optional(rules.job_headers), "job options for all of them, as a producer gives them"
    )

    @property
    def name(self) -> str:
        """That of its subscription."""
        return self.subscription or f"route.{self.queue}"[:LONGEST_NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """``[schedules.NAME]``: a recurring job, by ``cron`` or ``every``."""

    queue: str = _setting(MISSING, rules.queue_name, "the queue that it is pushed to")
    payload: str = _setting("", rules.text, "what is pushed")
    cron: str | None = _setting(
        None, rules.optional(rules.text), "minute hour day-of-month month day-of-week"
    )
    timezone: str = _setting("UTC", rules.text, "whose hours those are, as Europe/Berlin")
    every: float | None = _setting(
        None, rules.optional(rules.seconds(above=0)), "from one run to the next, instead of cron"
    )
    misfire: str = _setting(
        Misfire.ONE, rules.one_of(*Misfire), "which of the runs that no broker was there for are made up for"
    )
    options: Mapping[str, Any] | None = _setting(
        None, rules.optional(rules.schedule_options), "of its jobs, as { priority = 5 }"
    )

    @property
    def timetable(self) -> Timetable:
        """When it runs."""
        return Timetable(self.cron or "", self.timezone, self.every or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """``[[devices]]``: two ends, each with any number of doors, and what goes on between them."""

    kind: str = _setting(MISSING, rules.one_of(*Kind), "what it is")
    queue: str = _setting("default", rules.queue_name, "the queue between its ends")
    frontends: tuple[Endpoint, ...] = _setting(
        (), rules.endpoints, "doors of producers, askers or publishers", key="frontend"
    )
    backends: tuple[Endpoint, ...] = _setting(
        (), rules.endpoints, "doors of workers or subscribers", key="backend"
    )
    commits: tuple[Endpoint, ...] = _setting(
        (), rules.endpoints, "doors for the answers of PULL workers", key="commit"
    )
    ack: str = _setting(
        Ack.RECEIVED,
        rules.one_of(*Ack),
        "when a PULL worker's job is done: its ZeroMQ has it; before it is sent; the worker says so",
    )
    envelope: str = _setting(
        "payload",
        rules.one_of("payload", "full"),
        "what workers receive: the payload, or id and headers too; of a stream: its number and time behind",
    )
    stream: str | None = _setting(
        None, rules.optional(rules.queue_name), "the stream between its ends; by default nothing is kept"
    )
    replays: tuple[Endpoint, ...] = _setting(
        (),
        rules.endpoints,
        "doors that tell what was: REQ and DEALER ask for messages of streams",
        key="replay",
    )
    latest: bool = _setting(
        default=False, rule=rules.flag, doc="a new subscriber gets the last message of each topic at once"
    )
    prefetch: int | None = _setting(
        None,
        rules.optional(rules.whole(1)),
        "jobs at one PULL worker that it has not settled, or received (up to 1000), or that are removed "
        "for it at once: by default 256; auto 64, explicit 1",
    )
    auto_create: bool | None = _setting(
        None,
        rules.optional(rules.flag),
        "whether a message to an unknown queue makes it; by default as in [broker]",
    )
    hwm: int = _setting(10_000, rules.whole(1), "jobs between the ends and MongoDB, at most")
    hwm_bytes: int = _setting(64 * MIB, rules.size(), "their bytes, at most")

    @property
    def ends(self) -> tuple[Endpoint, ...]:
        """All of its doors."""
        return (*self.frontends, *self.backends, *self.commits, *self.replays)


def settings_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """The settings of a table by the key that they are written with."""
    return {each.metadata["key"] or each.name: each for each in fields(kind)}


def applies(key: str, settings: Any) -> bool:
    """Whether a device of this kind has this setting; all other tables have all of theirs."""
    return not isinstance(settings, DeviceSettings) or settings.kind in ONLY.get(key, (settings.kind,))
