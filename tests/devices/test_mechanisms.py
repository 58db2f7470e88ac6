"""Mechanisms: NULL, PLAIN, and the boxes of CURVE."""

import subprocess
import sys

import pytest

from devices.mechanism_wire import DEALER, ROUTER, body_of, shake_hands
from sluicemq_devices.zmtp import NULL, PLAIN, Credentials, PlainClient, PlainServer, ready_property
from sluicemq_devices.zmtp.curve import boxes
from sluicemq_devices.zmtp.curve.boxes import DirectBoxes, PublicBoxes
from sluicemq_devices.zmtp.curve.sodium import Broken
from sluicemq_devices.zmtp.large_frame import memory_of
from sluicemq_devices.zmtp.mechanism import REFUSAL
from sluicemq_devices.zmtp.null import Null

A_DEALER = ready_property(b"Socket-Type", b"DEALER")
REP = ready_property(b"Socket-Type", b"REP")
READY = b"\x05READY"


def test_with_null_both_sides_say_ready_at_once_and_are_done_when_admitted() -> None:
    ours, theirs = Null(A_DEALER), Null(REP)
    assert ours.take(theirs.begin()[2:]) == theirs.take(ours.begin()[2:]) == b""
    assert (ours.properties, theirs.properties) == ({b"socket-type": b"REP"}, {b"socket-type": b"DEALER"})
    assert ours.credentials == Credentials(NULL)
    assert not ours.done
    assert ours.decide("") == b""
    assert ours.done
    assert ours.traffic is None


def test_a_peer_that_null_refuses_gets_nothing() -> None:
    side = Null(A_DEALER)
    side.take(READY + REP)
    assert side.decide("it may not") == b""
    assert (side.error, side.done) == ("it may not", False)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "broken ZMTP: a command b'' where READY belongs"),
        (b"\x09READY", "broken ZMTP: a command b'' where READY belongs"),
        (b"\x05HELLO\x01u\x06secret", "broken ZMTP: a command b'HELLO' where READY belongs"),
        (READY + REP[:-1], "broken ZMTP: a READY command whose properties can't be read"),
        (b"\x05ERROR\x03400", "it says ERROR: '400'"),
    ],
)
def test_null_refuses_what_is_no_ready(body: bytes, error: str) -> None:
    side = Null(A_DEALER)
    assert side.take(body) == b""
    assert side.error == error
    assert side.credentials is None


def test_null_takes_ready_once() -> None:
    side = Null(A_DEALER)
    side.take(READY + REP)
    side.take(READY + REP)
    assert side.error.endswith("where nothing belongs")


HELLO = b"\x05HELLO\x04anna\x06secret"


def under_way() -> PlainServer:
    side = PlainServer(ROUTER)
    side.take(HELLO)
    side.decide("")
    return side


def test_both_sides_go_through_all_commands() -> None:
    client, server = PlainClient(DEALER, "anna", "secret"), PlainServer(ROUTER)
    said = shake_hands(client, server)
    assert said == [HELLO, b"\x07WELCOME", b"\x08INITIATE" + DEALER, b"\x05READY" + ROUTER]
    assert server.credentials == Credentials(PLAIN, user="anna", password="secret")  # noqa: S106
    assert client.credentials == Credentials(PLAIN)
    assert (client.properties or {})[b"socket-type"] == b"ROUTER"
    assert (server.properties or {})[b"socket-type"] == b"DEALER"
    assert client.traffic is None
    assert server.traffic is None


def test_a_password_is_not_in_what_is_logged() -> None:
    server = PlainServer(ROUTER)
    server.take(HELLO)
    assert "secret" not in repr(server.credentials)


def test_user_and_password_may_be_empty_and_have_255_bytes_in_utf_8() -> None:
    for user, password in (("", ""), ("é" * 127, "p" * 255)):
        server = PlainServer(ROUTER)
        shake_hands(PlainClient(DEALER, user, password), server)
        assert server.credentials == Credentials(PLAIN, user=user, password=password)
    with pytest.raises(ValueError, match="255 bytes"):
        PlainClient(DEALER, "é" * 128, "")


def test_a_client_that_is_refused_hears_error_400() -> None:
    client, server = PlainClient(DEALER, "anna", "wrong"), PlainServer(ROUTER)
    server.take(body_of(client.begin()))
    assert server.decide("the password is wrong") == REFUSAL
    assert (server.error, server.done) == ("the password is wrong", False)
    client.take(body_of(REFUSAL))
    assert client.error == "it says ERROR: '400'"


@pytest.mark.parametrize(
    "body", [HELLO[:size] for size in range(len(HELLO))] + [HELLO + b"\0", b"\x05HELLO\x01\xff\0"]
)
def test_a_hello_that_is_cut_or_too_long_or_no_text_is_refused(body: bytes) -> None:
    server = PlainServer(ROUTER)
    assert server.take(body) == b""
    assert server.error
    assert "secret" not in server.error
    assert server.credentials is None


@pytest.mark.parametrize("body", [b"\x08INITIATE" + DEALER[:-1], HELLO, b"\x05READY" + DEALER, b""])
def test_what_is_no_initiate_is_refused_where_one_belongs(body: bytes) -> None:
    server = under_way()
    assert server.take(body) == b""
    assert server.error
    assert "secret" not in server.error
    assert not server.done


def test_nobody_gets_past_the_password() -> None:
    server = PlainServer(ROUTER)
    server.take(b"\x08INITIATE" + DEALER)
    assert "HELLO belongs" in server.error
    server = PlainServer(ROUTER)
    server.take(HELLO)
    server.take(b"\x08INITIATE" + DEALER)
    assert "nothing belongs" in server.error
    assert not server.done


@pytest.mark.parametrize("body", [b"\x07WELCOME\0", b"\x05READY" + ROUTER, b"\x05HELLO", b""])
def test_what_is_no_welcome_is_refused_where_one_belongs(body: bytes) -> None:
    client = PlainClient(DEALER, "anna", "secret")
    assert client.take(body) == b""
    assert client.error
    assert not client.done


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
