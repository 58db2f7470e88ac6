"""The configuration: every setting, its default and its rule, in one frozen object.

Sources, later ones win: the defaults below, one TOML file, the environment (``SLUICEMQ_LEASE`` for
``lease`` of ``[broker]``), flags (``--lease``)::

    [broker]            BrokerSettings
    [queues."*"]        QueueSettings of every queue
    [queues.NAME]       QueueSettings of one, over those
    [streams."*"]       StreamSettings of every stream
    [streams.NAME]      StreamSettings of one, over those
    [[devices]]         DeviceSettings; once there is one, the default devices are not there
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from sluicemq.options import OPTIONS
from sluicemq_broker.config import rules
from sluicemq_broker.job import BOUNDS, KINDS, Backoff, OnExpiry
from sluicemq_devices.doors import Endpoint, tcp_address
from sluicemq_devices.relays import Kind

MIB = 2**20

#: MongoDB's documents end at 16 MiB; this leaves room for headers, result and history.
MAX_JOB_BYTES = 15 * MIB

#: A variable is named so, and then as the setting of [broker], in capitals.
ENVIRONMENT = "SLUICEMQ_"
_Settings = TypeVar("_Settings", "QueueSettings", "StreamSettings")
_PASSWORD = re.compile(r"^(mongodb(?:\+srv)?://[^:@/]*):[^@/]*@")
_PORT = 5550  # of the library's door; those of the default devices follow it


class ConfigError(ValueError):
    """A key or a value that can't be used; the text says where it stands and what was expected."""


#: Settings of a device that only some kinds have: the others' workers take one job at a time, or none.
ONLY = {
    "queue": (Kind.STREAMER, Kind.QUEUE),
    "envelope": (Kind.STREAMER, Kind.QUEUE),
    "auto_create": (Kind.STREAMER, Kind.QUEUE),
    "commit": (Kind.STREAMER,),
    "ack": (Kind.STREAMER,),
    "prefetch": (Kind.STREAMER,),
}


def _setting(default: Any, rule: rules.Rule, doc: str, *, key: str | None = None) -> Any:
    """One setting: its default (MISSING if it must be given), what it may be, what it is for.

    ``key`` is how it is written where that differs from the attribute's name.
    """
    return field(default=default, metadata={"rule": rule, "doc": doc, "key": key})


def _option(name: str, rule: rules.Rule | None = None, doc: str = "") -> Any:
    """The setting that gives a job's option to those without it: its default, bounds and words.

    ``rule``: where a queue may say what a header may not.
    """
    option = OPTIONS[name]
    return _setting(option.default, rule or rules.of_option(option), doc or option.doc)


def _door(port: int, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(tcp_address("" if host == "*" else host, port), bind=True)


_ENDPOINT = _door(_PORT)
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """``[broker]``: the process, its MongoDB, its door for the library."""

    endpoint: Endpoint = _setting(_ENDPOINT, rules.bound_endpoint, "the door of the library and the commands")
    host: str = _setting("127.0.0.1", rules.host, "where the default doors listen")
    mongodb_uri: str | None = _setting(
        None, rules.optional(rules.mongodb_uri), "without one: an embedded MongoDB in data_dir"
    )
    database: str = _setting("sluicemq", rules.database_name, "the MongoDB database")
    data_dir: Path | None = _setting(
        None,
        rules.optional(rules.folder),
        "folder of the embedded MongoDB; by default the user's data folder",
    )
    lease: float = _setting(15.0, rules.seconds(above=0), "seconds a silent broker keeps its reservations")
    heartbeat: float = _setting(
        2.0, rules.seconds(above=0), "seconds between signs of life to and from workers"
    )
    silence: float = _setting(6.0, rules.seconds(above=0), "seconds of silence after which a worker is gone")
    max_job_bytes: int = _setting(12 * MIB, rules.size(MAX_JOB_BYTES), "largest payload of a job")
    max_queues: int = _setting(1000, rules.whole(1), "queues that pushes may make")
    auto_create: bool = _setting(default=True, rule=rules.flag, doc="a push to an unknown queue makes it")
    hwm: int = _setting(10_000, rules.whole(1), "jobs of the library on their way to MongoDB, at most")
    hwm_bytes: int = _setting(64 * MIB, rules.size(), "their bytes, at most")
    stop_timeout: float = _setting(30.0, rules.seconds(), "seconds a stop waits for running jobs")
    max_connections: int | None = _setting(
        None, rules.optional(rules.whole(1)), "by default what the limit of open files allows"
    )
    allow_unsafe_store: bool = _setting(
        default=False, rule=rules.flag, doc="accept a MongoDB that may lose confirmed jobs"
    )
    log_level: str = _setting(
        "info", rules.one_of("debug", "info", "warning", "error"), "least level that is logged"
    )
    log_format: str = _setting("text", rules.one_of("text", "json"), "one line or one JSON object each")
    poll: float = _setting(1.0, rules.seconds(above=0), "seconds between looks for jobs of other brokers")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """``[queues.NAME]``: how the jobs of one queue are treated, unless their headers say otherwise."""

    database: str | None = _setting(
        None, rules.optional(rules.database_name), "the MongoDB database; by default that of [broker]"
    )
    max_attempts: int = _option("max_attempts")
    max_losses: int = _setting(
        20, rules.whole(1, 1_000_000), "brokers that may die with a job before it is a dead letter"
    )
    visibility_timeout: float = _option("visibility_timeout", rules.seconds(above=0))
    backoff: str = _option(
        "backoff", rules.one_of(*KINDS), "how the wait grows after each failure; or linear, fixed, none"
    )
    backoff_base: float = _setting(_BACKOFF.base, rules.seconds(), "seconds after the first failure")
    backoff_factor: float = _setting(
        _BACKOFF.factor, rules.number(*BOUNDS["factor"]), "by which an exponential wait grows each time"
    )
    backoff_cap: float = _setting(_BACKOFF.cap, rules.seconds(), "seconds, at most")
    backoff_jitter: float = _setting(
        _BACKOFF.jitter, rules.number(*BOUNDS["jitter"]), "share of a wait that chance adds or takes off"
    )
    dead_retention: float | None = _setting(
        None, rules.optional(rules.seconds()), "seconds a dead letter is kept; by default until it is purged"
    )
    keep_done: float = _option("keep_done")
    remember: float = _setting(
        300.0, rules.seconds(), "seconds a result can be asked for again by the job's id"
    )
    priority: int = _option("priority", doc="of jobs that name none; higher first")
    ttl: float | None = _option("ttl", rules.optional(rules.seconds(above=0)))
    on_expiry: str = _setting(
        OnExpiry.DROP, rules.one_of(*OnExpiry), "what becomes of it then: removed, or a dead letter"
    )
    delay: float = _option("delay")
    dedupe_window: float = _option("dedupe_window", rules.seconds(above=0))

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
    ack: str = _setting("auto", rules.one_of("auto", "explicit"), "whether PULL workers commit their jobs")
    envelope: str = _setting(
        "payload", rules.one_of("payload", "full"), "what workers receive: the payload, or id and headers too"
    )
    prefetch: int | None = _setting(
        None,
        rules.optional(rules.whole(1)),
        "unsettled jobs at one PULL worker, at most: by default 1; with ack auto 64 are removed at once",
    )
    auto_create: bool | None = _setting(
        None,
        rules.optional(rules.flag),
        "whether a message to an unknown queue makes it; by default as in [broker]",
    )
    hwm: int = _setting(10_000, rules.whole(1), "jobs between the ends and MongoDB, at most")
    hwm_bytes: int = _setting(64 * MIB, rules.size(), "their bytes, at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set, checked."""

    broker: BrokerSettings
    queues: Mapping[str, QueueSettings]  # those that are named
    other_queues: QueueSettings  # [queues."*"]
    devices: tuple[DeviceSettings, ...]
    streams: Mapping[str, StreamSettings] = field(default_factory=dict)  # those that are named
    other_streams: StreamSettings = StreamSettings()  # [streams."*"]

    @classmethod
    def default(cls) -> Self:
        """What holds where nothing is set."""
        return cast("Self", load(None, {}, {}))

    def queue(self, name: str) -> QueueSettings:
        """The settings of any queue, named in the configuration or not."""
        return self.queues.get(name, self.other_queues)

    def stream(self, name: str) -> StreamSettings:
        """The settings of any stream, named in the configuration or not."""
        return self.streams.get(name, self.other_streams)


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Read and check the configuration; raises :class:`ConfigError`.

    ``flags`` are keys of ``[broker]``; those that are None were not given.
    """
    document = _read(file) if file else {}
    place = str(file)
    _known(document, {"broker", "queues", "streams", "devices"}, place)
    broker = _broker(document.get("broker", {}), place, environ, flags)
    named, others = _by_name("queues", QueueSettings, document.get("queues", {}), place)
    streams, other_streams = _by_name("streams", StreamSettings, document.get("streams", {}), place)
    devices = _devices(document["devices"], place) if "devices" in document else _default_devices(broker.host)
    config = Config(
        broker=broker,
        queues=named,
        other_queues=others,
        devices=devices,
        streams=streams,
        other_streams=other_streams,
    )
    _refuse_shared_doors(config)
    return config


def describe(config: Config) -> str:
    """Every value as TOML, with its meaning; passwords are left out, what is not set is a comment."""
    parts = [_table("[broker]", config.broker), _table('[queues."*"]', config.other_queues)]
    parts += [_table(f'[queues."{name}"]', each) for name, each in config.queues.items()]
    parts.append(_table('[streams."*"]', config.other_streams))
    parts += [_table(f'[streams."{name}"]', each) for name, each in config.streams.items()]
    parts += [_table("[[devices]]", each) for each in config.devices]
    return "\n".join(parts)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise ConfigError(f"{file}: is not TOML: {error}") from error


def _broker(table: Any, file: str, environ: Mapping[str, str], flags: Mapping[str, Any]) -> BrokerSettings:
    values = _checked(BrokerSettings, table, f"{file}: [broker]")
    values |= _checked_each(BrokerSettings, _of_environment(environ), lambda key: ENVIRONMENT + key.upper())
    given = {key: value for key, value in flags.items() if value is not None}
    values |= _checked_each(BrokerSettings, given, lambda key: "--" + key.replace("_", "-"))
    if "host" in values:
        values.setdefault("endpoint", _door(_PORT, values["host"]))
    values.setdefault("data_dir", _user_data_folder(environ))
    broker = BrokerSettings(**values)
    if broker.silence <= broker.heartbeat:
        raise ConfigError(
            f"silence = {broker.silence:g} must be longer than heartbeat = {broker.heartbeat:g}"
        )
    return broker


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables.

    Only near misses are refused: Kubernetes sets SLUICEMQ_PORT and more for a service of this name.
    """
    found = {}
    for name in (name for name in environ if name.startswith(ENVIRONMENT)):
        key = name.removeprefix(ENVIRONMENT).lower()
        if key in settings_of(BrokerSettings):
            found[key] = environ[name]
        elif "did you mean" in (complaint := rules.unknown(key, settings_of(BrokerSettings))):
            raise ConfigError(f"{name}: {complaint}")
    return found


def _user_data_folder(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_DATA_HOME", "")
    parent = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "share"
    return parent / "sluicemq"


def _by_name(
    what: str, kind: type[_Settings], tables: Any, file: str
) -> tuple[Mapping[str, _Settings], _Settings]:
    """The tables of queues, or streams: those that are named, and what holds for all others."""
    if not isinstance(tables, dict):
        raise ConfigError(f"{file}: {what}: expected tables, [{what}.NAME]")
    common = _checked(kind, tables.get("*", {}), f'{file}: [{what}."*"]')
    named = {}
    for name in (name for name in tables if name != "*"):
        place = f"{file}: [{what}.{name}]"
        _value(rules.queue_name, name, place)
        named[name] = kind(**{**common, **_checked(kind, tables[name], place)})
    return MappingProxyType(named), kind(**common)


def _devices(tables: Any, file: str) -> tuple[DeviceSettings, ...]:
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: devices: expected [[devices]], one for each")
    return tuple(_device(table, f"{file}: [[devices]] no. {n}") for n, table in enumerate(tables, 1))


def _device(table: Any, place: str) -> DeviceSettings:
    values = _checked(DeviceSettings, table, place)
    if "kind" not in values:
        first, second, third = (f'"{kind}"' for kind in Kind)
        raise ConfigError(f"{place}: kind is missing: expected {first}, {second} or {third}")
    device = DeviceSettings(**values)
    for key in table:
        if not _applies(key, device):
            raise ConfigError(f"{place}: {key}: is for a {' or '.join(ONLY[key])}, this is a {device.kind}")
    if not device.frontends and not device.backends:
        raise ConfigError(f"{place}: expected a frontend, a backend or both")
    if device.ack == "explicit" and device.backends and not device.commits:
        raise ConfigError(
            f'{place}: commit is missing: with ack = "explicit" workers answer on a door of its own'
        )
    return device


def _applies(key: str, settings: Any) -> bool:
    return not isinstance(settings, DeviceSettings) or settings.kind in ONLY.get(key, (settings.kind,))


def _default_devices(host: str) -> tuple[DeviceSettings, ...]:
    push, pull, req, rep, pub, sub, commit = ((_door(_PORT + n, host),) for n in range(1, 8))
    return (
        DeviceSettings(kind=Kind.STREAMER, frontends=push, backends=pull, commits=commit),
        DeviceSettings(kind=Kind.QUEUE, frontends=req, backends=rep),
        DeviceSettings(kind=Kind.FORWARDER, frontends=pub, backends=sub),
    )


def _refuse_shared_doors(config: Config) -> None:
    seen: set[str] = set()
    ends = [end for each in config.devices for end in (*each.frontends, *each.backends, *each.commits)]
    for end in (config.broker.endpoint, *ends):
        if end.bind and not end.is_any:
            if end.address in seen:
                raise ConfigError(f"{end.address} is bound twice; every door needs an address of its own")
            seen.add(end.address)


def settings_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """The settings of a table by the key that they are written with."""
    return {each.metadata["key"] or each.name: each for each in fields(kind)}


def _known(table: Mapping[str, Any], keys: Iterable[str], place: str) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{place}: {key}: {rules.unknown(key, keys)}")


def _checked(kind: type[Any], table: Any, place: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{place}: expected a table of keys and values")
    return _checked_each(kind, table, lambda key: f"{place} {key}", place)


def _checked_each(
    kind: type[Any], table: Mapping[str, Any], where: Callable[[str], str], place: str = "flags"
) -> dict[str, Any]:
    """The values of a table by attribute, each checked by its rule; ``where`` names a key's place."""
    known = settings_of(kind)
    _known(table, known, place)
    return {
        known[key].name: _value(known[key].metadata["rule"], value, where(key))
        for key, value in table.items()
    }


def _value(rule: rules.Rule, value: Any, place: str) -> Any:
    try:
        return rule(value)
    except ValueError as error:
        raise ConfigError(f"{place}: expected {error}; got {value!r}") from None


def _table(title: str, settings: Any) -> str:
    rows = [
        _row(key, getattr(settings, each.name), each.metadata["doc"])
        for key, each in settings_of(type(settings)).items()
        if _applies(key, settings)
    ]
    return "\n".join([title, *rows, ""])


def _row(key: str, value: Any, doc: str) -> str:
    shown = f"# {key} =" if value in (None, ()) else f"{key} = {as_toml(value)}"
    return f"{shown}  # {doc}"


def as_toml(value: Any) -> str:
    """A value as it may stand in the file, without a password."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return as_toml(value[0]) if len(value) == 1 else f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(_PASSWORD.sub(r"\1:***@", str(value)), ensure_ascii=False)
