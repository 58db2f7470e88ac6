"""A mutator of few lines, for where there is no atheris: it knows the corpus and bytes that often matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

_INTERESTING: Final = (
    *(b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\0", b"\r\n", b"."),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xd9\xff", b"*", b"%00"),
    *(b"9" * 400, b"-1", b"1e999", b"NaN", b"null", b"[" * 2000, b"{", b'"', b"\xed\xa0\x80", b"\\ud800"),
)
_LONGEST: Final = 8192


def mutated(seeds: Sequence[bytes], random: Random) -> Iterator[bytes]:
    """Yield cases without end, each made of seeds by a few changes."""
    seeds = seeds or [b""]
    while True:
        data = bytearray(random.choice(seeds))
        for _ in range(random.choice((1, 1, 2, 3, 8))):
            _change(data, seeds, random)
        yield bytes(data[:_LONGEST])


def _change(data: bytearray, seeds: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(data) + 1)
    to = min(len(data), at + random.choice((1, 1, 2, 4, 16, 64)))
    match random.randrange(8):
        case 0:
            data[at:at] = random.randbytes(random.choice((1, 2, 8)))
        case 1:
            del data[at:to]
        case 2:
            data[at:to] = random.choice(_INTERESTING)
        case 3:
            data[at:at] = data[at:to] * random.choice((1, 2, 50))
        case 4:
            other = random.choice(seeds)
            start = random.randrange(len(other) + 1)
            data[at:] = other[start:]
        case 5:
            other = random.choice(seeds)
            start = random.randrange(len(other) + 1)
            data[at:to] = other[start : start + random.choice((4, 16, 64))]
        case _ if at < len(data):
            data[at] = data[at] ^ 1 << random.randrange(8) if random.random() < 0.5 else random.randrange(256)
        case _:
            pass
