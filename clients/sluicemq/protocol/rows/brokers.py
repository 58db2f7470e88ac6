"""Rows of brokers: themselves, their devices, what they keep, and how they are."""

from __future__ import annotations

from sluicemq.protocol.rows.base import FormerMap, Row
from sluicemq.protocol.rows.queues import QueueRow, RatesRow, TotalsRow

#: Facts and gauges of a broker by their names, such as ``version``, ``uptime``, ``connections``, ``store``.
Figures = dict[str, str | int | float | None]


class LoadRow(Row, frozen=True, kw_only=True):
    """The load of a broker: jobs a second in the last minute, its workers, and the jobs that they have.

    ``busy``: the share of the last seconds in which its thread was at work; at 1 it can do no more.
    """

    rates: RatesRow
    workers: int
    in_flight: int
    busy: float


class BrokerRow(Row, frozen=True, kw_only=True):
    """A broker of the database: since when, when it was seen last, when it was declared dead.

    ``here``: it is the one that answers. ``version``: empty if it is too old to say. ``reads``: the oldest
    and the newest schema of the store that it reads. ``load``: None of one that does not say.
    """

    name: str
    since: float | None
    seen: float | None
    ended: float | None
    here: bool
    version: str
    reads: tuple[int, ...]
    load: LoadRow | None = None


class BrokersRow(Row, frozen=True, kw_only=True):
    """The brokers of the database, also those of the last day that fell silent.

    ``schema``: that of the store; ``newest``: the one to which an upgrade raises it.
    """

    brokers: tuple[BrokerRow, ...]
    schema: int
    newest: int


class SchemaRow(Row, frozen=True, kw_only=True):
    """The schema of the store, and the ``newest``, to which an upgrade raises it."""

    schema: int
    newest: int


class UpgradeRow(Row, frozen=True, kw_only=True):
    """The schema of the store now, and ``before``."""

    schema: int
    before: int


class CountersRow(FormerMap, Row, frozen=True, kw_only=True):
    """A broker's facts and gauges, and its counters since its start."""

    broker: Figures
    counters: dict[str, int]


class SubscriberRow(Row, frozen=True, kw_only=True):
    """A subscriber of a forwarder: its address, its topics, what is held for it, what it has lost."""

    peer: str
    topics: int
    held: int
    lost: int


class CountedRow(Row, frozen=True, kw_only=True):
    """Counters of a device since the broker's start; ``paused``: milliseconds."""

    received: int
    sent: int
    lost: int
    paused: int


class DeviceRow(Row, frozen=True, kw_only=True):
    """A device: its doors, what it holds, what it has counted.

    ``name``: in the history, its kind and its queue or stream. ``replay``: doors for earlier messages of a
    ``stream``. ``unsettled``: jobs at its workers.
    """

    name: str
    kind: str
    queue: str
    frontend: tuple[str, ...]
    backend: tuple[str, ...]
    commit: tuple[str, ...]
    connections: int
    held: int
    held_bytes: int
    unsettled: int
    shut: bool
    counted: CountedRow
    stream: str | None = None
    replay: tuple[str, ...] | None = None


class DevicesRow(Row, frozen=True, kw_only=True):
    """The devices of this broker."""

    devices: tuple[DeviceRow, ...]


class ForwarderRow(Row, frozen=True, kw_only=True):
    """The doors of a forwarder, and its subscribers."""

    kind: str
    queue: str
    frontend: tuple[str, ...]
    backend: tuple[str, ...]
    commit: tuple[str, ...]
    subscribers: tuple[SubscriberRow, ...]
    stream: str | None = None
    replay: tuple[str, ...] | None = None


class StatsRow(FormerMap, Row, frozen=True, kw_only=True):
    """The state of the broker, its counters, its queues and its forwarders."""

    broker: Figures
    counters: dict[str, int]
    queues: tuple[QueueRow, ...]
    forwarders: tuple[ForwarderRow, ...] = ()


class OverviewRow(Row, frozen=True, kw_only=True):
    """A broker at one moment, as dashboards show it.

    ``problems``: of the store, the lease or the doors; empty: it serves. ``actions``: changes are possible
    here. ``attention``: queues whose jobs die, that are paused, or whose jobs wait for long. ``matching``:
    how many queues match. ``dying``: queues whose jobs became dead letters in the last ten minutes.
    """

    at: float
    broker: Figures
    counters: dict[str, int]
    problems: dict[str, str]
    actions: bool
    totals: TotalsRow
    attention: tuple[QueueRow, ...]
    dying: dict[str, int]
    matching: int
    queues: tuple[QueueRow, ...]


class HealthRow(FormerMap, Row, frozen=True, kw_only=True):
    """The health of a broker's MongoDB: ``store`` is ``ok``, or says what is wrong.

    ``store_silent``: seconds since a question to MongoDB that has no answer.
    """

    store: str = ""
    store_silent: float | None = None


class ReadinessRow(Row, frozen=True, kw_only=True):
    """Readiness: a broker that ``serves`` can take and hand out jobs; else the parts say what is wrong."""

    serves: bool
    store: str
    lease: str
    doors: str


class KeptRow(Row, frozen=True, kw_only=True):
    """One thing that is kept, such as the dead letters of a queue, and its ``bound`` in words.

    ``used``: the share of the bound that is used: at 1 the oldest go, or no more is taken; None: it is
    bounded by time. ``oldest``: when the oldest came.
    """

    kind: str
    name: str
    bound: str
    number: int | None
    bytes: int | None
    oldest: float | None
    used: float | None


class KeptList(Row, frozen=True, kw_only=True):
    """The list of what is kept, as it was looked at last, ``at`` this time."""

    at: float | None
    kept: tuple[KeptRow, ...]
