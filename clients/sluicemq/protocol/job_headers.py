"""The headers of a job as bytes: msgpack, or from plain sockets also JSON."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any, Final

from sluicemq.protocol.errors import BadHeadersError, TooLargeError
from sluicemq.protocol.msgpack_values import pack, unpack, unpack_bounded

#: Bytes of one job's headers, as JSON or msgpack.
MOST_BYTES: Final = 64 * 1024


def encode(headers: Mapping[str, Any]) -> bytes:
    """Return a headers frame, msgpack, as :func:`decode` reads it."""
    return pack(headers)


def decode(frame: bytes) -> dict[str, Any]:
    """Read the headers frame of a plain-socket job: JSON if it begins with ``{``, else msgpack.

    Before the ``{`` there may be white space, or a byte order mark: as msgpack these are no map. An empty
    frame means no headers. Raises :class:`~sluicemq.BadHeadersError`, and :class:`~sluicemq.TooLargeError`
    for more than :data:`MOST_BYTES`.
    """
    if not frame:
        return {}
    check_bytes(len(frame))
    is_json = frame.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n").startswith(b"{")
    headers = _json(frame) if is_json else unpack_bounded(frame, BadHeadersError, "headers")
    if not isinstance(headers, dict):
        raise BadHeadersError(f"headers are a {type(headers).__name__}, expected a map")
    return headers


def thaw(packed: bytes) -> dict[str, Any]:
    """Return a copy of headers that :func:`encode` has packed; raises as :func:`decode` does."""
    check_bytes(len(packed))
    headers: dict[str, Any] = unpack(packed, BadHeadersError, "headers", ext_hook=_no_extension)
    return headers


def check_bytes(size: int) -> None:
    """Raise :class:`~sluicemq.TooLargeError` if a job's headers may not have ``size`` bytes."""
    if size > MOST_BYTES:
        raise TooLargeError(f"the headers of a job have {size} bytes, at most {MOST_BYTES} are taken")


def _no_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"an extension type ({code}) stands for nothing here")


def _json(frame: bytes) -> Any:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise BadHeadersError(f"headers start with '{{' but are not JSON: {error}") from error
