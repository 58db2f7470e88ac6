"""The configuration as it is shown: as TOML with comments, or as JSON; without passwords."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.device_settings import applies
from sluicemq_broker.config.door_settings import Door, given
from sluicemq_broker.config.key_file import KeyFile
from sluicemq_broker.config.loading import Config
from sluicemq_broker.config.mongo_uri import MongoUri
from sluicemq_broker.config.redis_url import RedisUrl
from sluicemq_broker.config.secret import Secret
from sluicemq_devices.sockets import Endpoint

_SHOWN_AS_TEXT = (MongoUri, RedisUrl, Secret, Endpoint, Path, KeyFile, Permissions)


def describe(config: Config) -> str:
    """Return every value as TOML, with its meaning; passwords are hidden, unset values are comments."""
    parts = [_table("[broker]", config.broker), _table('[queues."*"]', config.other_queues)]
    parts += [_table(f'[queues."{name}"]', each) for name, each in config.queues.items()]
    parts.append(_table('[streams."*"]', config.other_streams))
    parts += [_table(f'[streams."{name}"]', each) for name, each in config.streams.items()]
    parts += [_table("[[routes]]", each) for each in config.routes]
    parts += [_table(f'[schedules."{name}"]', each) for name, each in config.schedules.items()]
    parts += [_table("[[devices]]", each) for each in config.devices]
    parts.append(_table("[security]", config.security))
    parts += [_table(f'[security.principals."{name}"]', each) for name, each in config.principals.items()]
    return "\n".join(parts)


def as_json(config: Config) -> dict[str, Any]:
    """Return every value as the file has it: tables of broker, queues, streams; lists of routes, devices."""
    queues = {"*": config.other_queues, **config.queues}
    streams = {"*": config.other_streams, **config.streams}
    return {
        "broker": _values(config.broker),
        "queues": {name: _values(each) for name, each in queues.items()},
        "streams": {name: _values(each) for name, each in streams.items()},
        "routes": [_values(each) for each in config.routes],
        "schedules": {name: _values(each) for name, each in config.schedules.items()},
        "devices": [_values(each) for each in config.devices],
        "security": {
            **_values(config.security),
            "principals": {name: _values(each) for name, each in config.principals.items()},
        },
    }


def plain(value: Any) -> Any:
    """Return a value as JSON has it, without a password."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, Door):
        value = {key: plain(each) for key, each in given(value).items()}
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, _SHOWN_AS_TEXT) else value


def as_toml(value: Any) -> str:
    """Return a value as TOML, without a password."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return as_toml(value[0]) if len(value) == 1 else f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Door):
        value = given(value)
    if isinstance(value, Mapping):
        rows = (f"{json.dumps(key, ensure_ascii=False)} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(rows)} }}"
    return json.dumps(str(value), ensure_ascii=False)


def _table(title: str, settings: Any) -> str:
    known = settings_of(type(settings))
    in_files = {each.metadata["holds"] for each in known.values() if getattr(settings, each.name)}
    rows = [
        _row(key, getattr(settings, each.name), each.metadata["doc"], in_file=key in in_files)
        for key, each in known.items()
        if applies(key, settings)
    ]
    return "\n".join([title, *rows, ""])


def _row(key: str, value: Any, doc: str, *, in_file: bool) -> str:
    """Return a line of a table: a comment for a value that is in a file, as it can't be given, too."""
    shown = f"# {key} =" if value in (None, ()) else f"{'# ' if in_file else ''}{key} = {as_toml(value)}"
    return f"{shown}  # {doc}"


def _values(settings: Any) -> dict[str, Any]:
    return {
        key: plain(getattr(settings, each.name))
        for key, each in settings_of(type(settings)).items()
        if applies(key, settings)
    }
