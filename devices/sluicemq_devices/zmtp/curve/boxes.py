"""Boxes of the traffic of one connection (XSalsa20 and Poly1305), as fast as PyNaCl lets them be.

PyNaCl's functions take memory for each box and copy it some times: 200 bytes take 2 us, of which libsodium
needs 0.6, and 12 MiB take 30 ms instead of 8. The C functions behind them are no documented interface of
PyNaCl, so that ``PublicBoxes`` stay for versions without them.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, Final

from nacl.bindings import crypto_box_afternm, crypto_box_open_afternm
from nacl.exceptions import CryptoError

_BOX, _KEY, _NONCE = 16, 32, 24
#: Bytes of a box that is made in the scratch memory, at most.
ROOM: Final = 131_072

try:
    from nacl import _sodium

    _direct: Any = _sodium
    _to_box = _direct.lib.crypto_box_easy_afternm
    _to_data = _direct.lib.crypto_box_open_easy_afternm
    _from_buffer = _direct.ffi.from_buffer
    #: Memory for one box at a time: only the hub's thread makes any.
    _scratch = _direct.ffi.new("unsigned char[]", ROOM)
    _made: bytes = _direct.ffi.buffer(_scratch)  # its slices are bytes
except (ImportError, AttributeError):
    _direct = None


class PublicBoxes:
    """Seals and opens under one key, with PyNaCl's documented functions."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY:
            raise ValueError(f"a key has {_KEY} bytes")
        self._key = key

    def seal(self, data: bytes, nonce: bytes) -> bytes:
        """Return the box of data."""
        return crypto_box_afternm(data, nonce, self._key)

    def unseal(self, box: bytes, nonce: bytes) -> bytes:
        """Return the data in a box; raises CryptoError if it is not authentic."""
        return crypto_box_open_afternm(box, nonce, self._key)

    def seal_in(self, memory: bytearray | mmap, start: int, stop: int, nonce: bytes) -> None:
        """Make a box from ``start`` to ``stop`` of the data that is there, behind 16 bytes of room."""
        memory[start:stop] = self.seal(bytes(memory[start + _BOX : stop]), nonce)

    def unseal_in(self, memory: bytearray | mmap, start: int, nonce: bytes) -> None:
        """Open the box from ``start`` to the end; its data begins 16 bytes behind its start.

        Raises CryptoError if it is not authentic.
        """
        memory[start + _BOX :] = self.unseal(bytes(memory[start:]), nonce)


class DirectBoxes(PublicBoxes):
    """Boxes made by the C functions, in memory that is there already."""

    __slots__ = ()

    def seal(self, data: bytes, nonce: bytes) -> bytes:
        """Return the box of data."""
        size = len(data)
        if size > ROOM - _BOX or len(nonce) != _NONCE:
            return super().seal(data, nonce)
        _to_box(_scratch, data, size, nonce, self._key)
        return _made[: size + _BOX]

    def unseal(self, box: bytes, nonce: bytes) -> bytes:
        """Return the data in a box; raises CryptoError if it is not authentic."""
        size = len(box)
        if size > ROOM or len(nonce) != _NONCE:
            return super().unseal(box, nonce)
        if _to_data(_scratch, box, size, nonce, self._key):
            raise CryptoError("a box that is not authentic")
        return _made[: size - _BOX]

    def seal_in(self, memory: bytearray | mmap, start: int, stop: int, nonce: bytes) -> None:
        """Make a box in its place."""
        place = _place(memory, start, stop, nonce)
        _to_box(place, place + _BOX, stop - start - _BOX, nonce, self._key)

    def unseal_in(self, memory: bytearray | mmap, start: int, nonce: bytes) -> None:
        """Open a box in its place."""
        stop = len(memory)
        place = _place(memory, start, stop, nonce)
        if _to_data(place + _BOX, place, stop - start, nonce, self._key):
            raise CryptoError("a box that is not authentic")


def _place(memory: bytearray | mmap, start: int, stop: int, nonce: bytes) -> Any:
    """Return where a box begins; raises ValueError for what the C functions would not notice."""
    if not 0 <= start <= stop - _BOX <= len(memory) - _BOX or len(nonce) != _NONCE:
        raise ValueError(f"a box from {start} to {stop} of {len(memory)} bytes, a nonce of {len(nonce)}")
    return _from_buffer(memory) + start


Boxes = DirectBoxes if _direct else PublicBoxes
