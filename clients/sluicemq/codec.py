"""Codecs: values of a program as the bytes of payloads and results, and back.

The type of a payload's content is the job's own header ``content-type``, which every broker keeps, and which
``sluicemq jobs show`` and the dashboard show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol, TypeAlias, cast

from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.readable import said

CONTENT_TYPE: Final = "content-type"


class Codec(Protocol):
    """Makes bytes of values, and values of bytes; for any thread. ``JSON`` is one.

    ``content_type``: names the form of the bytes, such as ``application/json``.
    """

    @property
    def content_type(self) -> str:
        """Return the name of the form."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; raises TypeError or ValueError for one that has none."""

    def decode(self, data: bytes) -> Any:
        """Return the value of bytes; raises ValueError."""


class _Json:
    """JSON in UTF-8, without blanks; nan and infinity are none."""

    content_type: Final = "application/json"

    def encode(self, value: Any) -> bytes:
        """Return a value as JSON; raises TypeError or ValueError."""
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        """Return the value of JSON; raises ValueError."""
        return json.loads(data)

    def __repr__(self) -> str:
        return "JSON"


#: The codec that is used where none is given.
JSON: Final[Codec] = _Json()


def check_codec(name: str, value: object) -> None:
    """Check that an argument is a codec."""
    methods = callable(getattr(value, "encode", None)) and callable(getattr(value, "decode", None))
    if not methods or not isinstance(getattr(value, "content_type", None), str):
        kind = type(value).__name__
        raise TypeError(f"{name} is an object with encode, decode and content_type, not {kind}")


#: A parameter that is a codec, and is checked.
CodecArgument: TypeAlias = Annotated[Codec, check_codec]


def encoded(codec: Codec, value: Any) -> bytes:
    """Return the bytes of a value; raises TypeError or ValueError, which name it."""
    try:
        data = codec.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"value has no form as {codec.content_type}: {said(error)}") from error
    if not isinstance(data, bytes):
        raise TypeError(f"the codec of {codec.content_type} made {type(data).__name__} of a value, not bytes")
    return data


def decoded(codec: Codec, data: bytes, what: str) -> Any:
    """Return the value of bytes; raises ValueError, which says of what they are."""
    try:
        return codec.decode(data)
    except Exception as error:
        raise ValueError(f"{what} is not {codec.content_type}: {said(error)}") from error


def codec_of(content_type: object, codec: Codec, what: str) -> Codec:
    """Return the codec for a type of content: JSON, or the program's own; raises ValueError for another."""
    if content_type is None or content_type == codec.content_type:
        return codec
    if content_type == JSON.content_type:
        return JSON
    raise ValueError(f"{what} is {content_type!r}, the codec here is {codec.content_type!r}: give codec=")


def with_content_type(options: JobOptions, codec: Codec) -> JobOptions:
    """Return options of a push with the type of its content among its headers; a given one stays."""
    own: Mapping[str, Any] = options.get("headers") or {}
    return cast("JobOptions", {**options, "headers": {CONTENT_TYPE: codec.content_type, **own}})
