"""The configuration as it is shown: as TOML with comments, or as JSON; without passwords."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.device_settings import applies
from sluicemq_broker.config.door_settings import Door, given
from sluicemq_broker.config.loading import Config
from sluicemq_broker.config.mongo_uri import MongoUri
from sluicemq_broker.config.secrets import KeyFile, RedisUrl, Secret
from sluicemq_broker.config.sections import SECTIONS
from sluicemq_devices.sockets import Endpoint

_SHOWN_AS_TEXT = (MongoUri, RedisUrl, Secret, Endpoint, Path, KeyFile, Permissions)


def describe(config: Config) -> str:
    """Return every value as TOML, with its meaning; passwords are hidden, unset values are comments."""
    return "\n".join(
        _table(title, values)
        for section in SECTIONS
        for title, values in _titled(section.name, section.of(config))
    )


def as_json(config: Config) -> dict[str, Any]:
    """Return every value as the file has it: tables of broker, queues, streams; lists of routes, devices."""
    found = {section.name: _values(section.of(config)) for section in SECTIONS}
    found["security"]["principals"] = found.pop("security.principals")
    return found


def plain(value: Any) -> Any:
    """Return a value as JSON has it, without a password."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Door):
        value = {key: plain(item) for key, item in given(value).items()}
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
        rows = (f"{json.dumps(key, ensure_ascii=False)} = {as_toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(rows)} }}"
    return json.dumps(str(value), ensure_ascii=False)


def _titled(name: str, tables: Any) -> Iterator[tuple[str, Any]]:
    """Yield each table of a section with its title."""
    if isinstance(tables, Mapping):
        yield from ((f'[{name}."{table}"]', settings) for table, settings in tables.items())
    elif isinstance(tables, tuple):
        yield from ((f"[[{name}]]", settings) for settings in tables)
    else:
        yield f"[{name}]", tables


def _table(title: str, settings: Any) -> str:
    known = settings_of(type(settings))
    in_files = {setting.metadata["holds"] for setting in known.values() if getattr(settings, setting.name)}
    rows = [
        _row(key, getattr(settings, setting.name), setting.metadata["doc"], in_file=key in in_files)
        for key, setting in known.items()
        if applies(key, settings)
    ]
    return "\n".join([title, *rows, ""])


def _row(key: str, value: Any, doc: str, *, in_file: bool) -> str:
    """Return a line of a table: a comment for a value that is in a file, as it can't be given, too."""
    shown = f"# {key} =" if value in (None, ()) else f"{'# ' if in_file else ''}{key} = {as_toml(value)}"
    return f"{shown}  # {doc}"


def _values(tables: Any) -> Any:
    """Return the values of a table, of tables by name, or of a list of tables."""
    if isinstance(tables, Mapping):
        return {name: _values(settings) for name, settings in tables.items()}
    if isinstance(tables, tuple):
        return [_values(table) for table in tables]
    return {
        key: plain(getattr(tables, field.name))
        for key, field in settings_of(type(tables)).items()
        if applies(key, tables)
    }
