"""Settings of queues that lie in MongoDB: how they are read, and how they lie over those of the file.

A stored value is JSON, so that it has neither the bounds of BSON nor its forbidden names. What a broker can't
use of it (a key of a newer version, a value that somebody has damaged) it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, replace
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from sluicemq.protocol.rows import SettingRow
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.display import plain
from sluicemq_broker.config.settings import QueueSettings

#: The word by which a setting has no value, where it need not have one.
NO_VALUE: Final = "none"
#: Characters of the values of one queue, at most, and of a wrong value in an error.
MOST_STORED: Final = 64 * 1024
_SHOWN: Final = 80

_KNOWN: Final[dict[str, Field[Any]]] = settings_of(QueueSettings)


class SettingOrigin:
    """Where a setting has its value from."""

    DEFAULT: Final = "default"
    FILE: Final = "file"
    MONGODB: Final = "mongodb"
    #: For all queues.
    MONGODB_ALL: Final = "mongodb *"


class Layer(NamedTuple):
    """Values that are stored, by their keys, and where they are from."""

    source: str
    values: Mapping[str, str]


def stored_value(key: str, value: Any) -> str:
    """Return a value as it is stored; raises ValueError if this key can't have it, or is no setting.

    A text is read as on a command line: ``"5"``, ``"1h"``, ``"true"``, ``"none"``.
    """
    _require_settable(key)
    rule = _KNOWN[key].metadata["rule"]
    try:
        if isinstance(value, str):
            nothing = _KNOWN[key].default is None and value.strip().lower() == NO_VALUE
            read = rule(None) if nothing else rule.of_text(value)
        else:
            read = rule(value)
        stored = json.dumps(plain(read), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{key}: expected {error}; got {str(value)[:_SHOWN]!r}") from None
    if len(stored) > MOST_STORED:
        raise ValueError(f"{key}: has {len(stored)} characters, {MOST_STORED} are possible")
    return stored


def require_setting(key: object) -> None:
    """Raise ValueError for a key that is no setting of queues."""
    if not isinstance(key, str) or key not in _KNOWN:
        raise ValueError(f"{str(key)[:_SHOWN]}: {rules.unknown(str(key)[:_SHOWN], _KNOWN)}")


def with_stored(settings: QueueSettings, *layers: Layer) -> QueueSettings:
    """Return settings with what is stored over them, later layers over earlier ones."""
    values = {name: value for layer in layers for name, value in _usable(layer.values)}
    return replace(settings, **values) if values else settings


def explained(file: QueueSettings, *layers: Layer) -> tuple[SettingRow, ...]:
    """Return each setting and its source, and what the file says where that is another value."""
    sources = {name: layer.source for layer in layers for name, _ in _usable(layer.values)}
    now = with_stored(file, *layers)
    rows = []
    for key, setting in _KNOWN.items():
        of_file, value = getattr(file, setting.name), getattr(now, setting.name)
        source = sources.get(setting.name) or (
            SettingOrigin.DEFAULT if of_file == setting.default else SettingOrigin.FILE
        )
        other = UNSET if value == of_file else plain(of_file)
        rows.append(SettingRow(key=key, value=plain(value), source=str(source), file=other))
    return tuple(rows)


def given_in_file(settings: QueueSettings) -> dict[str, Any]:
    """Return the settings of a file that are not the defaults, as plain values."""
    return {
        key: plain(getattr(settings, setting.name))
        for key, setting in _KNOWN.items()
        if getattr(settings, setting.name) != setting.default
    }


def defaults_of_queues() -> dict[str, Any]:
    """Return the default of each setting of queues, as a plain value."""
    return {key: plain(setting.default) for key, setting in _KNOWN.items()}


def _require_settable(key: object) -> None:
    require_setting(key)
    if not _KNOWN[str(key)].metadata["live"]:
        raise ValueError(
            f"{key} can't change while brokers run: give it in the file of each, [queues.NAME], and restart "
            "them"
        )


def _usable(stored: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes and values that this version can use of what is stored."""
    for key, text in stored.items():
        try:
            _require_settable(key)
            yield _KNOWN[key].name, _KNOWN[key].metadata["rule"](json.loads(text))
        except (ValueError, TypeError, RecursionError):
            continue
