"""Options, ids and payloads of a push, checked and converted as they are sent."""

from __future__ import annotations

from typing import Any

from sluicemq import arguments
from sluicemq.protocol import job_headers
from sluicemq.protocol.errors import BadHeadersError
from sluicemq.protocol.options import KEYWORDS, OPTIONS, JobOptions
from sluicemq.protocol.readable import brief, said
from sluicemq.protocol.rules import LONGEST_ID

Headers = dict[str, Any]


def as_headers(options: JobOptions, reply: str | None = None) -> tuple[Headers | None, int]:
    """Return a copy of the options as it is sent, and its bytes; None and 0 for a job without any.

    Made in the caller's thread, so that the caller gets the errors: TypeError,
    :class:`~sluicemq.BadHeadersError`.
    """
    if unknown := options.keys() - KEYWORDS:
        raise TypeError(f"push() got an unexpected keyword argument {min(unknown)!r}")
    given: Headers = {key: value for key, value in options.items() if value is not None}
    if not given.get("headers", True):
        del given["headers"]
    for key, value in given.items():
        if key != "headers":  # errors in a user's own map are the broker's
            given[key] = _read(key, value)
    if reply is not None:
        given["reply"] = reply
    return _frozen(given) if given else (None, 0)


def checked_id(id: str) -> str:  # noqa: A002 - the word that jobs use everywhere
    """Return the id, if a job may have it; raises TypeError or ValueError."""
    arguments.text("id", id)
    id = arguments.plain_text(id)  # noqa: A001
    if not 1 <= len(id.encode()) <= LONGEST_ID:
        raise ValueError(f"an id has 1 to {LONGEST_ID} bytes, this one has {len(id.encode())}")
    return id


def as_bytes(payload: Any) -> bytes:
    """Return the bytes of a payload of any type that holds bytes."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return arguments.plain_bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}: encode it first")


def _read(key: str, value: Any) -> Any:
    """Return the value as it is sent; raises :class:`~sluicemq.BadHeadersError`, as the broker would."""
    try:
        return OPTIONS[key].rule.read(value)
    except ValueError as error:
        raise BadHeadersError(f"header {key!r} is {brief(value)}, expected {error}") from error


def _frozen(given: Headers) -> tuple[Headers, int]:
    try:
        packed = job_headers.encode(given)
    except Exception as error:
        raise BadHeadersError(f"headers can't be sent: {said(error)}") from error
    return job_headers.thaw(packed), len(packed)
