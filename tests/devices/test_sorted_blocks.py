"""Strings in their order: what precedes one is found, whatever has come and gone."""

from __future__ import annotations

import random
from bisect import bisect_right

from sluicemq_devices.relays.sorted_blocks import SortedBlocks


def before(sorted_: SortedBlocks[bytes], text: bytes) -> bytes | None:
    number = bisect_right(sorted_.firsts, text) - 1
    if number < 0:
        return None
    return sorted_.values[number][bisect_right(sorted_.blocks[number], text) - 1]


def test_what_precedes_a_string_is_found_while_others_come_and_go() -> None:
    draw = random.Random(3)
    sorted_: SortedBlocks[bytes] = SortedBlocks()
    there: set[bytes] = set()
    for step in range(3000):
        text = b"%d" % draw.randrange(1500)
        if text in there:
            sorted_.remove(text)
        else:
            sorted_.add(text, text)
        there ^= {text}
        if step % 50 == 0:
            for asked in (b"%d" % draw.randrange(1500) for _ in range(20)):
                expected = max((each for each in there if each <= asked), default=None)
                assert before(sorted_, asked) == expected
    assert [each for block in sorted_.blocks for each in block] == sorted(there)
    for text in there:
        sorted_.remove(text)
    assert not sorted_.firsts
    assert not sorted_.blocks
    assert not sorted_.values
