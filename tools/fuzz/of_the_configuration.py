"""Targets of what operators and administrators write: TOML, settings, principals, key files, URIs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import tomli_w

from fuzz.attempts import target
from fuzz.choices import Choices
from fuzz.of_the_protocol import WORDS as OF_JOBS
from sluicemq.protocol.keys import KeyPair, key_file, read_key, read_key_file
from sluicemq.transport import profiles
from sluicemq_broker.config import (
    BrokerSettings,
    ConfigError,
    DeviceSettings,
    MongoUri,
    PrincipalSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    SecuritySettings,
    StreamSettings,
    load,
    rules,
    settings_of,
)
from sluicemq_devices.sockets import AllowList

_TABLES: Final = (
    *(BrokerSettings, QueueSettings, StreamSettings, RouteSettings, ScheduleSettings),
    *(DeviceSettings, SecuritySettings, PrincipalSettings),
)
_SETTINGS: Final = tuple(dict.fromkeys(key for table in _TABLES for key in settings_of(table)))
#: Texts that mean something in a configuration.
_WORDS: Final = (
    *_SETTINGS,
    *OF_JOBS,
    *("broker", "queues", "streams", "devices", "routes", "schedules", "security", "principals", "endpoint"),
    *("queue", "streamer", "forwarder", "*", "mail", "tcp://*:5551", ">tcp://host:1", "ipc://@a", "null"),
    *(
        "plain",
        "curve",
        "all",
        "none",
        "push=mail.*",
        "* * * * *",
        "1h30m",
        "mongodb://h/?tls=true",
        "[::1]:1",
    ),
    *("sha256:" + "0" * 64, "$argon2id$v=19$m=65536,t=3,p=4$" + "a" * 22 + "$" + "b" * 43, "0" * 40),
)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="sluicemq-fuzz-"))


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    """A file, for its owner alone, with this content."""
    path = _folder() / f"{os.getpid()}.toml"
    path.touch(mode=0o600)
    path.write_bytes(data)
    yield path


def _load(data: bytes) -> None:
    with _file(data) as file:
        load(file, {}, {})


@target("configuration-bytes", ConfigError)
def bytes_of_a_file(data: bytes) -> None:
    """Bytes of a configuration file: a configuration, or an error that says what is wrong."""
    _load(data)


@target("configuration", ConfigError)
def configuration(data: bytes) -> None:
    """Tables and settings with values that are nearly right."""
    given = Choices(data)
    document: dict[str, Any] = {}
    while given.left:
        name = given.one_of(("broker", "queues", "streams", "devices", "routes", "schedules", "security"))
        table = {given.one_of(_WORDS): _of_toml(given.value(_WORDS)) for _ in range(given.byte() % 6)}
        if name in ("devices", "routes"):
            document[name] = [table]
        elif name in ("queues", "streams", "schedules"):
            document.setdefault(name, {})[given.one_of(("mail", "*", given.text()))] = table
        elif name == "security" and given.byte() % 2:
            principals = document.setdefault(name, {}).setdefault("principals", {})
            if isinstance(principals, dict):
                principals[given.one_of(("p", given.text()))] = table
        else:
            document.setdefault(name, {}).update(table)
    try:
        text = tomli_w.dumps(document)
        data = text.encode()
    except (TypeError, ValueError):
        return  # TOML can't hold it
    _load(data)


def _of_toml(value: Any) -> Any:
    """Return a value in which all is what TOML holds."""
    if isinstance(value, dict):
        return {str(key): _of_toml(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_of_toml(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else 0 if value is None else value


@target("settings-of-environment", ConfigError)
def environment(data: bytes) -> None:
    """Settings of the broker as texts: in the environment, and as flags."""
    given = Choices(data)
    names = list(settings_of(BrokerSettings))
    texts = {given.one_of(names): given.text() for _ in range(1 + given.byte() % 4)}
    if given.byte() % 2:
        load(None, {f"SLUICEMQ_{name.upper()}": text for name, text in texts.items()}, {})
    else:
        load(None, {}, texts)


@target("principal-fields", ValueError)
def principal(data: bytes) -> None:
    """Values of a principal's settings: what is taken is taken again."""
    given = Choices(data)
    rule = given.one_of([field.metadata["rule"] for field in settings_of(PrincipalSettings).values()])
    value = rule(given.value(_WORDS))
    assert str(rule(value)) == str(value)


@target("key-file", ValueError)
def key_files(data: bytes) -> None:
    """A key file: what is taken is a pair of keys; no error repeats a secret."""
    with _file(data) as path:
        pair = read_key_file(path)
    assert len(pair.public) == len(pair.secret) == 32
    with _file(key_file(pair).encode()) as path:
        assert read_key_file(path) == KeyPair(pair.public, pair.secret)


@target("allow-list", ValueError)
def allow_list(data: bytes) -> None:
    """The file of those that get in at a device; a line that can't be read lets nobody in."""
    with _file(data) as path:
        allowed = AllowList(KeyPair(bytes(32), bytes(32)), path)
    named = {line.split()[0] for line in data.decode().splitlines() if line.strip()}
    assert allowed.is_over(bytes(31))
    assert all(name.startswith("#") or not allowed.is_over(read_key(name)) for name in named)


@target("profiles", ValueError)
def profile(data: bytes) -> None:
    """The file of profiles of clients."""
    with _file(data) as path:
        content = profiles._read(str(path))[0] or {}
        found = profiles._profile(str(path), content.get("profiles", {}), content.get("default"))
    endpoints = found.values.get("endpoint", "")
    texts = [*(endpoints if isinstance(endpoints, list) else [endpoints])]
    texts += [value for key, value in found.values.items() if key != "endpoint"]
    assert all(isinstance(text, str) for text in texts)
    assert set(found.values) <= set(profiles.KEYS)


@target("mongodb-uri", ValueError)
def uris(data: bytes) -> None:
    """A URI of MongoDB: shown without its password, whatever it is."""
    given = Choices(data)
    password = "s3cr3t-" + given.text()
    rest = given.rest().decode("utf-8", "surrogateescape")
    uri = rules.mongodb_uri(f"mongodb://user:{password}@{rest}")
    assert isinstance(uri, MongoUri)
    assert "s3cr3t" in rest or "s3cr3t" not in f"{uri} {uri!r}"
