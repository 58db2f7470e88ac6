"""JSON for values that MessagePack and MongoDB hold and JSON does not, in one form everywhere.

=====================  ===========================================================================
payloads, results      their text, or ``{"base64": "..."}`` where they are no UTF-8
in a job's ``headers``  bytes are ``{"$bytes": "..."}``, as base64, so that nothing is changed
numbers                NaN and infinity are ``{"$float": "NaN"}``, ``"Infinity"``, ``"-Infinity"``
=====================  ===========================================================================

A user's own map is never taken for one of these: keys of headers don't begin with ``$``.
"""

from __future__ import annotations

import base64
import json
from math import isfinite
from typing import Any, Final

from msgspec import Struct

from sluicemq.protocol.rows import plain

_OWN: Final = "headers"


def dumps(value: Any, *, ascii: bool = False) -> str:  # noqa: A002 - the name of the encoding
    """Return a value as JSON that every language reads; ``ascii``: other characters are escaped."""
    encoder = _ASCII if ascii else _TEXT
    try:
        return encoder.encode(value)
    except (TypeError, ValueError):  # a value that JSON has no form for
        return encoder.encode(_plain(value))


def text_of(value: bytes) -> str | dict[str, str]:
    """Return a payload or a result as JSON has it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _row(value: object) -> Any:
    if isinstance(value, Struct):
        return plain(value)
    raise TypeError


_TEXT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_row)
_ASCII: Final = json.JSONEncoder(allow_nan=False, default=_row)


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        value = plain(value)
    match value:
        case dict():
            return {
                key: _own(item) if key == _OWN and isinstance(item, dict) else _plain(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return text_of(value)
        case float():
            return _finite(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _own(value: Any) -> Any:
    """Return a value of a user's headers, without any loss."""
    match value:
        case dict():
            return {key: _own(item) for key, item in value.items()}
        case list() | tuple():
            return [_own(item) for item in value]
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
    return _plain(value)


def _finite(number: float) -> Any:
    if isfinite(number):
        return number
    return {"$float": {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(number))]}
