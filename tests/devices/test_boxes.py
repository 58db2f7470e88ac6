"""Boxes of CURVE traffic: those by PyNaCl's documented functions and the direct ones are alike."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluicemq_devices.zmtp.curve import boxes
from sluicemq_devices.zmtp.curve.boxes import DirectBoxes, PublicBoxes
from sluicemq_devices.zmtp.curve.sodium import Broken
from sluicemq_devices.zmtp.large_frame import memory_of

KEY, NONCE = b"k" * 32, b"n" * 24
KINDS = [PublicBoxes, DirectBoxes]
LARGE = 2 << 20  # in a mapping

both = pytest.mark.parametrize("kind", KINDS)


def test_this_pynacl_has_what_direct_boxes_need() -> None:
    assert boxes.Boxes is DirectBoxes


@both
@pytest.mark.parametrize("size", [1, 200, boxes.ROOM - 16, boxes.ROOM - 15, LARGE])
def test_a_box_of_one_kind_is_opened_by_the_other(kind: type[PublicBoxes], size: int) -> None:
    data = b"x" * size
    box = kind(KEY).seal(data, NONCE)
    for other in KINDS:
        assert other(KEY).seal(data, NONCE) == box
        assert other(KEY).unseal(box, NONCE) == data


@both
@pytest.mark.parametrize("size", [100_000, LARGE])
def test_a_box_is_made_and_opened_in_its_place(kind: type[PublicBoxes], size: int) -> None:
    memory = memory_of(7 + 16 + size + 5)
    memory[7 + 16 : -5] = data = b"x" * size
    kind(KEY).seal_in(memory, 7, len(memory) - 5, NONCE)
    box = PublicBoxes(KEY).seal(data, NONCE)
    assert bytes(memory[:]) == bytes(7) + box + bytes(5)
    memory = memory_of(7 + len(box))
    memory[7:] = box
    kind(KEY).unseal_in(memory, 7, NONCE)
    assert memory[7 + 16 :] == data


@both
def test_an_altered_box_is_refused(kind: type[PublicBoxes]) -> None:
    box = bytearray(kind(KEY).seal(b"x" * 200, NONCE))
    box[100] ^= 1
    for open_it in (
        lambda: kind(KEY).unseal(bytes(box), NONCE),
        lambda: kind(KEY).unseal_in(box, 0, NONCE),
        lambda: kind(KEY).unseal(b"too short", NONCE),
    ):
        with pytest.raises(Broken):
            open_it()


@both
def test_keys_nonces_and_places_of_another_size_are_refused(kind: type[PublicBoxes]) -> None:
    ours = kind(KEY)
    for act in (
        lambda: kind(KEY[1:]),
        lambda: ours.seal(b"data", NONCE[1:]),
        lambda: ours.unseal(bytes(20), NONCE[1:]),
        lambda: ours.seal_in(bytearray(20), 0, 20, NONCE[1:]),
        lambda: ours.unseal_in(bytearray(20), 0, NONCE[1:]),
    ):
        with pytest.raises(ValueError, match=r"key|nonce"):
            act()
    for start, stop in ((0, 21), (5, 20), (-1, 19)):
        with pytest.raises(ValueError, match="a box from"):
            DirectBoxes(KEY).seal_in(bytearray(20), start, stop, NONCE)


WITHOUT_C_FUNCTIONS = """
from nacl import _sodium
{missing}
from sluicemq_devices.zmtp.curve.sodium import Boxes
print(Boxes.__name__)
"""


@pytest.mark.parametrize(
    "missing",
    ["_sodium.lib = object()", "import nacl, sys; del nacl._sodium; sys.modules['nacl._sodium'] = None"],
)
def test_a_pynacl_without_them_has_the_documented_ones(missing: str) -> None:
    program = WITHOUT_C_FUNCTIONS.format(missing=missing)
    command = [sys.executable, "-P", "-c", "import nacl.bindings\n" + program]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "PublicBoxes\n"
