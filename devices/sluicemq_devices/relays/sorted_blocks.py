"""Byte strings in their order, each with a value: found by halving, added and removed as cheaply."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

_LARGEST = 64  # strings of a block, which is then halved

T = TypeVar("T")


class SortedBlocks(Generic[T]):
    """What precedes a string is in the last block whose first one does. Others read the blocks as they are.

    To find it takes as many comparisons as the number of all strings has bits. Most of them are with the
    first ones of blocks, which the processor has in its cache: so blocks are small.
    """

    def __init__(self) -> None:
        self.firsts: list[bytes] = []
        """The first string of each block."""
        self.blocks: list[list[bytes]] = []
        self.values: list[list[T]] = []
        """What belongs to the strings, block by block."""

    def add(self, text: bytes, value: T) -> None:
        """It was not there."""
        if not self.firsts:
            self.firsts, self.blocks, self.values = [text], [[text]], [[value]]
            return
        number = max(0, bisect_right(self.firsts, text) - 1)
        block, values = self.blocks[number], self.values[number]
        at = bisect_left(block, text)
        block.insert(at, text)
        values.insert(at, value)
        self.firsts[number] = block[0]
        if len(block) > _LARGEST:
            self._halve(number)

    def remove(self, text: bytes) -> None:
        """It was there."""
        number = bisect_right(self.firsts, text) - 1
        block, values = self.blocks[number], self.values[number]
        at = bisect_left(block, text)
        del block[at], values[at]
        if block:
            self.firsts[number] = block[0]
        else:
            del self.firsts[number], self.blocks[number], self.values[number]

    def alone(self, number: int, at: int, beginning: bytes) -> bool:
        """Whether of all strings only that one, which begins so, does."""
        block = self.blocks[number]
        before = block[at - 1 : at] if at else self.blocks[number - 1][-1:] if number else []
        behind = block[at + 1 : at + 2] or self.firsts[number + 1 : number + 2]
        return not any(text.startswith(beginning) for text in (*before, *behind))

    def _halve(self, number: int) -> None:
        block, values = self.blocks[number], self.values[number]
        half = len(block) // 2
        self.firsts.insert(number + 1, block[half])
        self.blocks.insert(number + 1, block[half:])
        self.values.insert(number + 1, values[half:])
        del block[half:], values[half:]
