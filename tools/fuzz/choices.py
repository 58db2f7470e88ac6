"""The bytes of one case, read as choices, pieces and values; at their end everything is zero or empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

_DEEPEST: Final = 4
#: Numbers at which something changes: of bytes, of msgpack, of doubles, of dates, of settings.
_NUMBERS: Final = (
    *(0, 1, -1, 2, 127, 255, 256, 1000, 1001, 65_535, 65_536, 100_001, 2**31 - 1, 2**31, 2**53, 2**53 + 1),
    *(2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 0.5, -0.0, 1e-320, 1e18, 1e308, float("inf")),
    *(float("-inf"), float("nan"), 253_370_764_800, 316_224_000),
)


class Choices:
    """Reads a case from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        taken = self.take(1)
        return taken[0] if taken else 0

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def piece(self) -> bytes:
        """The next bytes; their number comes first, in one byte, or in three if that is 255."""
        size = self.byte()
        return self.take(size if size < 255 else int.from_bytes(self.take(2)))

    def pieces(self) -> Iterator[bytes]:
        while self.left:
            yield self.piece()

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def text(self) -> str:
        """A text, which may have halves of surrogate pairs, as JSON and msgpack may hold them."""
        return self.piece().decode("utf-8", "surrogateescape")

    def value(self, words: Sequence[str], depth: int = 0) -> Any:
        """A value as msgpack, JSON or TOML hold it; ``words``: texts that mean something here."""
        makers: list[Callable[[], Any]] = [
            *(lambda: None, lambda: self.one_of((True, False)), self.byte, lambda: self.one_of(_NUMBERS)),
            *(2 * [lambda: self.one_of(words)]),
            *(self.text, self.piece, self._long_text),
        ]
        if depth < _DEEPEST:
            makers += [lambda: self._list(words, depth), *(2 * [lambda: self._map(words, depth)])]
        return self.one_of(makers)()

    def _long_text(self) -> str:
        return self.one_of("a@*.=>\0é€𝄞\ud800") * self.byte() * self.one_of((1, 1, 1, 17))

    def _list(self, words: Sequence[str], depth: int) -> list[Any]:
        return [self.value(words, depth + 1) for _ in range(self.byte() % 8)]

    def _map(self, words: Sequence[str], depth: int) -> dict[Any, Any]:
        count = range(self.byte() % 8)
        return {self.value(words, _DEEPEST): self.value(words, depth + 1) for _ in count}


def packed(*pieces: bytes) -> bytes:
    """Write pieces as :meth:`Choices.piece` reads them."""
    return b"".join(
        (bytes((len(piece),)) if len(piece) < 255 else b"\xff" + len(piece).to_bytes(2)) + piece
        for piece in pieces
    )
