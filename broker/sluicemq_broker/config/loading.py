"""The configuration, read and checked: one frozen object, or an error with all that is wrong.

Sources, later ones win: the defaults of :mod:`~sluicemq_broker.config.settings`, one TOML file, the
environment (``SLUICEMQ_LEASE`` for ``lease`` of ``[broker]``), flags (``--lease``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from sluicemq.protocol.environment import OF_CLIENTS
from sluicemq.protocol.secret_files import read_secret
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.device_settings import ONLY, Ack, DeviceSettings, Envelope, applies
from sluicemq_broker.config.environment import variables
from sluicemq_broker.config.mongo_uri import may_hold_a_secret
from sluicemq_broker.config.problems import ConfigError, Problem, problems_of_queue, problems_of_times
from sluicemq_broker.config.sections import OTHERS, SECTIONS
from sluicemq_broker.config.security_settings import (
    PrincipalSettings,
    SecuritySettings,
    problem_of_door,
    rule_of,
    shared_keys,
)
from sluicemq_broker.config.settings import (
    ENVIRONMENT,
    HTTP_PORT_AFTER,
    PORT,
    BrokerSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    StreamSettings,
    door,
)
from sluicemq_broker.config.tls_files import check_certificate
from sluicemq_devices.relays import Kind
from sluicemq_devices.sockets import Endpoint

#: Configurations and data of services of this host: sluicemq.toml, and NAME.toml of sluicemq@NAME.
_ETC, _STATE = Path("/etc/sluicemq"), Path("/var/lib/sluicemq")
_ALL_KEPT = StreamSettings()
_OPEN = SecuritySettings()
_Settings = TypeVar("_Settings", QueueSettings, StreamSettings)
_Table = TypeVar("_Table", DeviceSettings, RouteSettings, ScheduleSettings, PrincipalSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration, checked."""

    broker: BrokerSettings
    queues: Mapping[str, QueueSettings]  # queues with a table of their own
    other_queues: QueueSettings  # [queues."*"]
    devices: tuple[DeviceSettings, ...]
    streams: Mapping[str, StreamSettings] = field(default_factory=dict)  # streams with a table of their own
    other_streams: StreamSettings = _ALL_KEPT  # [streams."*"]
    routes: tuple[RouteSettings, ...] = ()
    schedules: Mapping[str, ScheduleSettings] = field(default_factory=dict)
    security: SecuritySettings = _OPEN
    principals: Mapping[str, PrincipalSettings] = field(default_factory=dict)  # [security.principals.NAME]
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Variables of the environment that settings of ``[broker]`` come from, by their attribute."""
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    """Values that are ignored, and perhaps were meant."""

    @classmethod
    def default(cls) -> Self:
        """Return the configuration with all defaults."""
        return cast("Self", load(None, {}, {}))

    @property
    def databases(self) -> set[str]:
        """The names of all databases that queues or streams may use: the broker has a lease in each."""
        queues = [settings.database for settings in (*self.queues.values(), self.other_queues)]
        streams = [settings.database for settings in (*self.streams.values(), self.other_streams)]
        return {database or self.broker.database for database in (*queues, *streams)}

    @property
    def queue_names(self) -> set[str]:
        """The queues that are named: by their tables, devices and routes."""
        devices, routes = (device.queue for device in self.devices), (route.queue for route in self.routes)
        return {*self.queues, *devices, *routes}

    @property
    def doors(self) -> Iterator[tuple[str, Endpoint, DeviceSettings | None]]:
        """All doors but HTTP: the table of each, its endpoint, and its device."""
        yield "[broker]", self.broker.endpoint, None
        for number, device in enumerate(self.devices, 1):
            for end in device.ends:
                yield f"[[devices]] no. {number}", end, device

    def named(self, attribute: str, value: str) -> str:
        """Return a value of ``[broker]`` with the variable that it comes from, if it does."""
        place = self.places.get(attribute)
        return f"{value} (of {place})" if place else value

    def queue(self, name: str) -> QueueSettings:
        """Return the settings of a queue, with a table of its own or not."""
        return self.queues.get(name, self.other_queues)

    def stream(self, name: str) -> StreamSettings:
        """Return the settings of a stream, with a table of its own or not."""
        return self.streams.get(name, self.other_streams)


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Read and check the configuration; raises :class:`ConfigError` with all that is wrong.

    ``flags`` are keys of ``[broker]``; those that are None were not given.
    """
    reading = _Reading(str(file))
    config = reading.config(_read(file) if file else {}, environ, flags)
    if reading.problems:
        raise ConfigError(reading.problems)
    return config


def problems_of_doors(config: Config) -> list[Problem]:
    """Return what doors lack for their mechanisms; each lack once, at the first door that has it."""
    found: dict[str, str] = {}
    for place, end, device in config.doors:
        problem = problem_of_door(config.security, end, rule_of(config.security, end, device))
        if problem:
            found.setdefault(problem, f"{place}: {end.address}")
    return [Problem(place, message) for message, place in found.items()]


def usual_data_folder(file: str, environ: Mapping[str, str]) -> Path:
    """Return the default folder of the embedded MongoDB's data: the user's, or that of the service.

    The units of ``deploy/install`` and of the package name this folder to the broker. Commands that read
    its file, such as ``doctor`` and ``backup``, find its data by that file.
    """
    path = Path(file).absolute()
    if path.parent == _ETC and path.suffix == ".toml":
        return _STATE if path.stem == _STATE.name else _STATE / path.stem
    given = environ.get("XDG_DATA_HOME", "")
    parent = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "share"
    return parent / "sluicemq"


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # Windows puts a byte order mark before it
    except OSError as error:
        raise ConfigError([Problem(str(file), f"can't be read: {error.strerror}")]) from error
    except ValueError as error:  # of TOML or UTF-8; its text names the place and shows one character at most
        raise ConfigError([Problem(str(file), f"is not TOML: {error}")]) from error
    except RecursionError:
        raise ConfigError([Problem(str(file), "is nested too deeply")]) from None


def _as_it_is(rule: rules.Rule, value: Any) -> Any:
    return rule(value)


def _of_text(rule: rules.Rule, value: Any) -> Any:
    return rule.of_text(value) if isinstance(value, str) else rule(value)


class _Reading:
    """One run over all sources: problems are collected, with the default in their place, to find more."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[Problem] = []
        self._refused: set[str] = set()  # names of values that were replaced by their default
        self._places: dict[str, str] = {}  # places of the values of [broker], the last one of each
        self._warnings: list[Problem] = []

    def config(
        self, document: Mapping[str, Any], environ: Mapping[str, str], flags: Mapping[str, Any]
    ) -> Config:
        self._known(document, {section.name for section in SECTIONS if "." not in section.name}, self._file)
        broker = self._broker(document.get("broker", {}), environ, flags)
        named, others = self._by_name("queues", QueueSettings, document.get("queues", {}))
        streams, other_streams = self._by_name("streams", StreamSettings, document.get("streams", {}))
        security, principals = self._security(document.get("security", {}))
        devices = (
            self._devices(document["devices"])
            if "devices" in document
            else default_devices(broker.host, broker.ports)
        )
        config = Config(
            broker=broker,
            queues=named,
            other_queues=others,
            devices=devices if broker.devices else (),
            streams=streams,
            other_streams=other_streams,
            routes=self._listed("routes", RouteSettings, document.get("routes", [])),
            schedules=self._schedules(document.get("schedules", {})),
            security=security,
            principals=principals,
            places={key: place for key, place in self._places.items() if place.startswith(ENVIRONMENT)},
            warnings=tuple(self._warnings),
        )
        self._compare(config)
        return config

    # ------------------------------------------------------------------ tables

    def _broker(self, table: Any, environ: Mapping[str, str], flags: Mapping[str, Any]) -> BrokerSettings:
        given = {key: value for key, value in flags.items() if value is not None}
        settings = self._of_environment(environ, {*given, *(table if isinstance(table, dict) else ())})
        values: dict[str, Any] = {}
        for source in (
            self._table(BrokerSettings, table, f"{self._file}: [broker]"),
            self._spelt(settings, lambda key: ENVIRONMENT + key.upper(), ENVIRONMENT),
            self._spelt(given, lambda key: "--" + key.replace("_", "-"), "flags"),
        ):
            if "ports" in source:  # it moves doors that an earlier source has named, too
                _forget_ports(values)
            values |= source
        values |= self._of_files(values)
        if "ports" in values:
            values.setdefault("http", f"127.0.0.1:{values['ports'] + HTTP_PORT_AFTER}")
        if values.keys() & {"host", "ports"}:
            values.setdefault("endpoint", door(values.get("ports", PORT), values.get("host", "127.0.0.1")))
        values.setdefault("data_dir", usual_data_folder(self._file, environ))
        return BrokerSettings(**values)

    def _of_files(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings whose values are in files of their own."""
        known, found = settings_of(BrokerSettings), {}
        for name, setting in known.items():
            held = setting.metadata["holds"]
            if held is None or values.get(name) is None:
                continue
            place = self._places[name]
            if held in self._places:
                self._wrong(place, f"{self._places[held]} is given, too: keep one of them")
                continue
            value = self._of_file(values[name], known[held].metadata["rule"], place)
            if value is not _REFUSED:
                found[held] = value
        return found

    def _of_file(self, file: Path, rule: rules.Rule, place: str) -> Any:
        """Return the value that is in a file; no error repeats it."""
        try:
            text = read_secret(file, "file").rstrip("\r\n")
        except ValueError as error:
            self._wrong(place, str(error))
            return _REFUSED
        try:
            return rule.of_text(text)
        except ValueError as error:
            self._wrong(place, f"expected in {file} {error}; what is there is not shown, for it is a secret")
        return _REFUSED

    def _of_environment(self, environ: Mapping[str, str], others: Container[str]) -> dict[str, str]:
        """Return the settings among the environment's variables; ``others``: those that file or flags have.

        The endpoint is a variable of clients, too: one that a shell exports for them moves no door whose
        address stands elsewhere.
        """
        found = variables(environ, settings_of(BrokerSettings))
        self.problems += found.problems
        self._warnings += found.warnings
        said = next((key for key in ("endpoint", "host", "ports") if key in others), None)
        if said and found.settings.pop("endpoint", ""):
            why = f"is left to clients, which read it, too: this broker listens as its {said} says"
            self._warnings.append(Problem(OF_CLIENTS["endpoint"], why))
        return found.settings

    def _by_name(
        self, what: str, kind: type[_Settings], tables: Any
    ) -> tuple[Mapping[str, _Settings], _Settings]:
        """Return the tables of queues or streams by name, and the settings of all others."""
        named = dict(self._named(what, tables))
        common = self._table(kind, named.pop(OTHERS, {}), f'{self._file}: [{what}."*"]')
        found = {
            name: kind(**{**common, **self._table(kind, table, self._place_of(what, name))})
            for name, table in named.items()
        }
        return MappingProxyType(found), kind(**common)

    def _schedules(self, tables: Any) -> Mapping[str, ScheduleSettings]:
        found = {}
        for name, table in self._named("schedules", tables):
            place = self._place_of("schedules", name)
            schedule = self._made(ScheduleSettings, table, place)
            if schedule is not None:
                found[name] = schedule
                try:
                    schedule.timetable.check()
                except ValueError as error:
                    self._wrong(place, str(error))
        return MappingProxyType(found)

    def _security(self, table: Any) -> tuple[SecuritySettings, Mapping[str, PrincipalSettings]]:
        own = dict(table) if isinstance(table, dict) else table
        principals = own.pop("principals", {}) if isinstance(own, dict) else {}
        settings = SecuritySettings(**self._table(SecuritySettings, own, f"{self._file}: [security]"))
        what, found = "security.principals", {}
        for name, given in self._named(what, principals, rules.principal_name):
            principal = self._made(PrincipalSettings, given, self._place_of(what, name))
            if principal is not None:
                found[name] = principal
        return settings, MappingProxyType(found)

    def _devices(self, tables: Any) -> tuple[DeviceSettings, ...]:
        return self._listed("devices", DeviceSettings, tables, self._check_device)

    def _check_device(self, device: DeviceSettings, table: Mapping[str, Any], place: str) -> None:
        for key in (key for key in table if not applies(key, device)):
            self._wrong(f"{place}: {key}", f"is for a {' or '.join(ONLY[key])}, this is a {device.kind}")
        if not table.get("frontend") and not table.get("backend"):
            self._wrong(place, "expected a frontend, a backend or both")
        if device.kind == Kind.FORWARDER and device.stream is None:
            for key, usual in (("envelope", Envelope.PAYLOAD), ("latest", False)):
                if getattr(device, key) != usual:
                    self._wrong(f"{place}: {key}", "is for a forwarder with a stream, this one only relays")
        if device.ack == Ack.EXPLICIT and device.backends and not table.get("commit"):
            self._wrong(place, 'commit is missing: with ack = "explicit" workers answer on a door of its own')

    def _place_of(self, what: str, name: str) -> str:
        return f"{self._file}: [{what}.{name}]"

    def _named(
        self, what: str, tables: Any, rule: rules.Rule = rules.queue_name
    ) -> Iterator[tuple[str, Any]]:
        """Yield tables that have names, [what.NAME]."""
        if not isinstance(tables, dict):
            self._wrong(f"{self._file}: {what}", f"expected tables, [{what}.NAME]")
            return
        for name, table in tables.items():
            if name != OTHERS or what not in {section.name for section in SECTIONS if section.others}:
                self._value(rule, name, self._place_of(what, name))
            yield name, table

    def _listed(
        self,
        what: str,
        kind: type[_Table],
        tables: Any,
        check: Callable[[_Table, Mapping[str, Any], str], None] = lambda _made, _table, _place: None,
    ) -> tuple[_Table, ...]:
        """Return the settings of tables in a list, [[what]]."""
        if not isinstance(tables, list):
            self._wrong(f"{self._file}: {what}", f"expected [[{what}]], one for each")
            return ()
        found = []
        for number, table in enumerate(tables, 1):
            place = f"{self._file}: [[{what}]] no. {number}"
            made = self._made(kind, table, place)
            if made is not None:
                check(made, table, place)
                found.append(made)
        return tuple(found)

    def _made(self, kind: type[_Table], table: Any, place: str) -> _Table | None:
        """Return the settings of a table; None if one that must be given is missing or refused."""
        values = self._table(kind, table, place)
        required = {key: setting for key, setting in settings_of(kind).items() if setting.default is MISSING}
        for key, setting in required.items():
            if isinstance(table, dict) and key not in table:
                self._wrong(place, f"{key} is missing: expected {setting.metadata['rule'].expected}")
        return kind(**values) if {setting.name for setting in required.values()} <= values.keys() else None

    def _compare(self, config: Config) -> None:
        """Check values against each other, unless one was refused by itself."""
        broker = config.broker
        if self._hold("silence", "heartbeat") and broker.silence <= broker.heartbeat:
            self._wrong(
                "", f"silence = {broker.silence:g} must be longer than heartbeat = {broker.heartbeat:g}"
            )
        self._compare_tls(broker)
        self._compare_queues(config)
        self._compare_times(config)
        if self._hold("name"):
            self._compare_routes(config)
        if self._hold("host", "endpoint", "frontends", "backends", "commits", "replays"):
            self._compare_ends(config)
        rule = ("mechanism", "anonymous", "secret_key_file", "allow_plain")
        if self._hold("endpoint", "frontends", "backends", "commits", "replays", *rule):
            for problem in problems_of_doors(config):
                self._wrong(f"{self._file}: {problem.place}", problem.message)
        for key, names in shared_keys(config.principals).items():
            self._wrong(f"{self._file}: [security.principals]", f"{' and '.join(names)} have one key: {key}")

    def _compare_routes(self, config: Config) -> None:
        named: set[tuple[str, str]] = set()
        for route in config.routes:
            if (route.stream, route.name) in named:
                what = f"stream {route.stream!r} has two routes with subscription {route.name!r}"
                self._wrong("", f"{what}: give one another name")
            named.add((route.stream, route.name))

    def _compare_ends(self, config: Config) -> None:
        seen: set[str] = set()
        for end in (config.broker.endpoint, *(end for device in config.devices for end in device.ends)):
            if end.bind and not end.is_any:
                if end.address in seen:
                    self._wrong("", f"{end.address} is bound twice; every door needs an address of its own")
                seen.add(end.address)

    def _compare_tls(self, broker: BrokerSettings) -> None:
        """Check that the HTTP door can use its certificate."""
        certificate, key = broker.http_tls_cert, broker.http_tls_key
        if not self._hold("http_tls_cert", "http_tls_key"):
            return
        if certificate is None or key is None:
            if certificate != key:
                self._wrong("", "http_tls_cert and http_tls_key are needed both, or none")
            return
        try:
            check_certificate(certificate, key)
        except ValueError as error:
            self._wrong("", f"http_tls_cert, http_tls_key: {error}")

    def _compare_queues(self, config: Config) -> None:
        for name in (*config.queues, '"*"'):
            for place, message in problems_of_queue(config.queue, name):
                if not place or self._hold(place):
                    self._wrong(f"{self._file}: [queues.{name}]" if place else "", message)

    def _compare_times(self, config: Config) -> None:
        """Check that jobs of routes and schedules are due before they expire."""
        made: dict[str, tuple[str, Mapping[str, Any] | None]] = {
            **{
                f"[[routes]] no. {at}": (route.queue, route.headers)
                for at, route in enumerate(config.routes, 1)
            },
            **{f"[schedules.{name}]": (one.queue, one.options) for name, one in config.schedules.items()},
        }
        for place, (queue, headers) in made.items():
            for problem in problems_of_times(config.queue(queue), headers or {}):
                self._wrong(f"{self._file}: {place}", problem.message)

    def _hold(self, *names: str) -> bool:
        """Return True if none of these values was refused."""
        return self._refused.isdisjoint(names)

    # ------------------------------------------------------------------ values

    def _table(self, kind: type[Any], table: Any, place: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            self._wrong(place, "expected a table of keys and values")
            return {}
        return self._values(kind, table, lambda key: f"{place} {key}", place)

    def _spelt(self, given: Mapping[str, Any], where: Callable[[str], str], place: str) -> dict[str, Any]:
        """Read values of ``[broker]`` from a source of texts (and flags without a value)."""
        return self._values(BrokerSettings, given, where, place, _of_text)

    def _values(
        self,
        kind: type[Any],
        table: Mapping[str, Any],
        where: Callable[[str], str],
        place: str,
        reading: Callable[[rules.Rule, Any], Any] = _as_it_is,
    ) -> dict[str, Any]:
        """Return the values of a table that pass their rules, by attribute; ``where`` names a key's place."""
        known = settings_of(kind)
        self._known(table, known, place)
        if kind is BrokerSettings:
            self._places |= {known[key].name: where(key) for key in table if key in known}
        checked = (
            (known[key].name, self._value(known[key].metadata["rule"], value, where(key), reading))
            for key, value in table.items()
            if key in known
        )
        values = dict(checked)
        self._refused.update(name for name, value in values.items() if value is _REFUSED)
        return {name: value for name, value in values.items() if value is not _REFUSED}

    def _known(self, table: Mapping[str, Any], keys: Iterable[str], place: str) -> None:
        for key in table:
            if key not in keys:
                self._wrong(f"{place}: {key}", rules.unknown(key, keys))

    def _value(
        self,
        rule: rules.Rule,
        value: Any,
        place: str,
        reading: Callable[[rules.Rule, Any], Any] = _as_it_is,
    ) -> Any:
        """Return the value as its rule reads it. An error shows the value, unless it may have a password."""
        try:
            return reading(rule, value)
        except ValueError as error:
            secret = rule.expected == rules.mongodb_uri.expected or rule.expected in rules.HIDDEN
            if not secret and not may_hold_a_secret(value):
                self._wrong(place, f"expected {error}; got {value!r}")
            else:
                expected = error if secret else rule.expected
                self._wrong(
                    place, f"expected {expected}; what is there is not shown, for it may hold a password"
                )
        return _REFUSED

    def _wrong(self, place: str, message: str) -> None:
        self.problems.append(Problem(place, message))


_REFUSED = object()


def _forget_ports(values: dict[str, Any]) -> None:
    """Drop the addresses that ``ports`` decides; an HTTP door that is switched off stays off."""
    values.pop("endpoint", None)
    if values.get("http"):
        del values["http"]


def default_devices(host: str, ports: int = PORT) -> tuple[DeviceSettings, ...]:
    """Return the devices of a configuration that names none."""
    push, pull, req, rep, pub, sub, commit = ((door(ports + n, host),) for n in range(1, 8))
    return (
        DeviceSettings(kind=Kind.STREAMER, frontends=push, backends=pull, commits=commit),
        DeviceSettings(kind=Kind.QUEUE, frontends=req, backends=rep),
        DeviceSettings(kind=Kind.FORWARDER, frontends=pub, backends=sub),
    )
