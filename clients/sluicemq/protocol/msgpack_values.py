"""MessagePack: values are packed and unpacked; what strangers send is unpacked in bounded time.

The bound is 10 ms, whatever the bytes are. It depends on their number::

    up to 1 KiB     unpacked at once: nothing in them takes long
    up to 320 KiB   first skipped through, to see that they hold what they announce (1,000 nested lists
                    that announce 64 Ki values each take 50 ms, since room is made for the values);
                    above 20,000 bytes the values are counted while they are made
    more            counted before anything is made (``msgpack_count``)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack
from msgspec import Struct

from sluicemq.protocol.errors import BadFramesError, BadHeadersError
from sluicemq.protocol.msgpack_count import within
from sluicemq.protocol.rows import plain

#: Values in one text of a stranger, keys of maps included; and its bytes outside ``bin``.
MOST_VALUES: Final = 20_000
MOST_OTHER_BYTES: Final = 4 << 20

FEW_BYTES: Final = 1024
SOME_BYTES: Final = 320 * 1024


def pack(value: Any) -> bytes:
    """Return a value as msgpack; rows are maps."""
    packed: bytes = msgpack.packb(value, default=_row)
    return packed


def _row(value: object) -> Any:
    if isinstance(value, Struct):
        return plain(value)
    raise TypeError(f"can not serialize {type(value).__name__!r} object")  # as msgpack says it


def pack_array(values: Sequence[bytes]) -> bytes:
    """Return an array of values that are packed already."""
    header: bytes = msgpack.Packer().pack_array_header(len(values))
    return b"".join((header, *values))


def unpack(packed: bytes, error: type[BadFramesError | BadHeadersError], what: str, **options: Any) -> Any:
    """Unpack bytes of a trusted peer; raises ``error``, which names ``what``."""
    try:
        return msgpack.unpackb(packed, **options)
    except (ValueError, msgpack.UnpackException, RecursionError) as cause:
        raise error(f"{what} can't be read as msgpack: {cause or type(cause).__name__}") from cause


def unpack_bounded(packed: bytes, error: type[BadFramesError | BadHeadersError], what: str) -> Any:
    """Unpack bytes of a stranger, in bounded time; raises ``error`` also beyond the bounds."""
    if len(packed) <= FEW_BYTES:
        return unpack(packed, error, what, ext_hook=_extension)
    if len(packed) > SOME_BYTES:
        if not within(packed, MOST_VALUES, MOST_OTHER_BYTES):
            raise error(
                f"{what} has {len(packed)} bytes, but is not whole, or has more than {MOST_VALUES} values "
                f"or {MOST_OTHER_BYTES} bytes beside payloads and results: send less at once"
            )
    elif not _is_whole(packed):
        raise error(f"{what} can't be read as msgpack: it is broken, or ends too early")
    if len(packed) <= MOST_VALUES:  # a value has a byte at least
        return unpack(packed, error, what, ext_hook=_extension)
    count = _Count().add
    return unpack(packed, error, what, ext_hook=_extension, list_hook=count, object_hook=count)


def first_of_array(packed: bytes) -> Any:
    """Return the first value of an array whose rest can't be read; None if that can't be read either."""
    start = msgpack.Unpacker(read_size=1, max_buffer_size=32)
    start.feed(packed[:32])
    try:
        start.read_array_header()
        return start.unpack()
    except (ValueError, msgpack.UnpackException):
        return None


class _Count:
    """Stops the unpacking of too many values."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def add(self, values: Any) -> Any:
        """Count a complete list or map."""
        self._left -= len(values) or 1
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_VALUES} values: send less at once")
        return values


def _is_whole(packed: bytes) -> bool:
    """Return whether the bytes hold all that they announce; 1 ns a value, since no value is made."""
    text = msgpack.Unpacker(read_size=1, max_buffer_size=len(packed))
    text.feed(packed)
    try:
        text.skip()
    except (ValueError, msgpack.UnpackException):
        return False
    return True


def _extension(_code: int, _data: bytes) -> Any:
    """Return a placeholder for an extension type, which is refused later; msgpack's own takes 0.4 us."""
    return NotImplemented
