"""CURVE: our two sides with each other, with recordings of libzmq, and with what was altered."""

import copy
import subprocess
import sys
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.curve_recordings import CLIENT, GOLDEN, SERVER
from devices.mechanism_wire import DEALER, ROUTER, FixedRandom, body_of, frames_of, shake_hands
from sluicemq_devices.zmtp import COMMAND, CURVE, LARGE, MORE, Credentials, command, encode, ping
from sluicemq_devices.zmtp.curve import curve_client, curve_server
from sluicemq_devices.zmtp.curve.client import CurveClient
from sluicemq_devices.zmtp.curve.server import CurveServer
from sluicemq_devices.zmtp.curve.sodium import public_of, seal, shared_key, unseal
from sluicemq_devices.zmtp.curve.traffic import FROM_CLIENT, CurveTraffic
from sluicemq_devices.zmtp.mechanism import REFUSAL

S, C = bytes(range(32)), bytes(range(32, 64))  # permanent secret keys of server and client
MOST = 1 << 20
LAST = (1 << 64) - 1
MESSAGES = [[b"", b"hello"], [b"x" * 300], [b""], [b"y" * 255, b"z" * 222, b"w" * 223]]


def server(secret: bytes = S, *, seed: bytes = b"server") -> CurveServer:
    return CurveServer(ROUTER, MOST, secret, FixedRandom(seed))


def client(secret: bytes = C, of: bytes = S, *, seed: bytes = b"client") -> CurveClient:
    return CurveClient(DEALER, MOST, secret, public_of(of), FixedRandom(seed))


def in_reads(traffic: CurveTraffic, sealed: bytes) -> bytes:
    """Open what comes in reads as a connection has them: no more than is missing of a large frame."""
    opened, at = [], 0
    while at < len(sealed):
        stop = at + (min(traffic.missing, 262_144) or LARGE)
        opened.append(traffic.open(sealed[at:stop]))
        at = stop
    return b"".join(opened)


def traffic_of(side: CurveClient | CurveServer) -> CurveTraffic:
    assert isinstance(side.traffic, CurveTraffic)
    return side.traffic


def connected() -> tuple[CurveTraffic, CurveTraffic]:
    """Traffic of a client and a server that have done their handshake."""
    sides = client(), server()
    shake_hands(*sides)
    return traffic_of(sides[0]), traffic_of(sides[1])


def under_way() -> tuple[CurveClient, CurveServer, list[bytes]]:
    """A client that has made HELLO and INITIATE, a server that has taken HELLO, and the three commands."""
    ours, theirs = client(), server()
    hello = body_of(ours.begin())
    welcome = body_of(theirs.take(hello))
    return ours, theirs, [hello, welcome, body_of(ours.take(welcome))]


def flips(data: bytes) -> list[bytes]:
    """All of what comes of data when one bit is flipped."""
    return [
        data[: bit // 8] + bytes((data[bit // 8] ^ 1 << bit % 8,)) + data[bit // 8 + 1 :]
        for bit in range(8 * len(data))
    ]


# ------------------------------------------------------------------ handshake


def test_both_sides_learn_keys_and_properties_and_understand_each_other() -> None:
    ours, theirs = client(), server()
    said = shake_hands(ours, theirs)
    assert [len(body) for body in said[:2]] == [200, 168]
    assert theirs.credentials == Credentials(CURVE, key=public_of(C))
    assert ours.credentials == Credentials(CURVE, key=public_of(S))
    assert (ours.properties or {})[b"socket-type"] == b"ROUTER"
    assert (theirs.properties or {})[b"socket-type"] == b"DEALER"
    for a, b in (connected(), connected()[::-1]):
        for message in MESSAGES:
            assert b.open(a.encode(message)) == encode(message)


def test_handshakes_with_fixed_keys_and_random_bytes_have_fixed_bytes() -> None:
    said = shake_hands(client(), server())
    assert said == [body for _, body in frames_of(GOLDEN)]


def test_keys_and_nonces_are_random_where_none_are_given() -> None:
    first, second = (
        shake_hands(curve_client(DEALER, MOST, C, public_of(S)), curve_server(ROUTER, MOST, S))
        for _ in range(2)
    )
    for one, other, start in zip(first[:3], second[:3], (80, 8, 9), strict=True):
        assert one[start : start + 32] != other[start : start + 32]


def test_a_recorded_client_of_libzmq_is_understood() -> None:
    side = server()
    commands = frames_of(CLIENT)[:2]
    for _, body in commands:
        side.take(body)
    assert side.credentials == Credentials(CURVE, key=public_of(C))
    side.decide("")
    sealed = CLIENT[sum(len(body) + (2 if len(body) < 256 else 9) for _, body in commands) :]
    assert traffic_of(side).open(sealed) == encode([b"", b"hello"]) + encode([b"x" * 300])


def test_a_recorded_server_of_libzmq_is_understood() -> None:
    side = client()
    side.begin()
    for _, body in (commands := frames_of(SERVER)[:2]):
        side.take(body)
    assert side.properties == {b"socket-type": b"ROUTER", b"identity": b""}
    side.decide("")
    sealed = SERVER[sum(2 + len(body) for _, body in commands) :]
    assert traffic_of(side).open(sealed) == command(b"PONG", b"ctx") + encode([b"", b"hello"])


def test_a_client_that_is_refused_hears_error_400_and_says_so() -> None:
    ours, theirs, said = under_way()
    theirs.take(said[2])
    assert theirs.decide("its key is unknown") == REFUSAL
    assert (theirs.error, theirs.done, theirs.traffic) == ("its key is unknown", False, None)
    assert ours.take(body_of(REFUSAL)) == b""
    assert ours.error == "it says ERROR: '400'"


def test_nothing_of_the_server_but_its_key_of_the_cookie_outlives_welcome() -> None:
    _, theirs, said = under_way()
    kept = [value for name in CurveServer.__slots__ if isinstance(value := getattr(theirs, name), bytes)]
    assert sorted(map(len, kept)) == [0, 8, 32, 32]  # no key yet, nonce, cookie key, permanent key
    theirs.take(said[2])
    assert theirs._cookie_key == b""


# -------------------------------------------------------------------- refusals


def test_a_flipped_bit_of_hello_is_refused() -> None:
    hello = body_of(client().begin())
    for altered in flips(hello):
        side = server()
        assert side.take(altered) == b""
        assert side.error


def test_a_flipped_bit_of_welcome_is_refused() -> None:
    ours = client()
    welcome = body_of(server().take(body_of(ours.begin())))
    for altered in flips(welcome):
        side = copy.deepcopy(ours)
        assert side.take(altered) == b""
        assert side.error


def test_a_flipped_bit_of_initiate_is_refused() -> None:
    _, theirs, said = under_way()
    for altered in flips(said[2]):
        side = copy.deepcopy(theirs)
        assert side.take(altered) == b""
        assert side.error
        assert side.credentials is None


def test_a_flipped_bit_of_ready_is_refused() -> None:
    ours, theirs, said = under_way()
    theirs.take(said[2])
    for altered in flips(body_of(theirs.decide(""))):
        side = copy.deepcopy(ours)
        assert side.take(altered) == b""
        assert side.error
        assert side.credentials is None
        assert side.traffic is None


@pytest.mark.parametrize("at", range(4), ids=["HELLO", "WELCOME", "INITIATE", "READY"])
def test_a_command_that_is_cut_or_too_long_is_refused(at: int) -> None:
    _, theirs, said = under_way()
    theirs.take(said[2])
    said.append(body_of(theirs.decide("")))
    for altered in [said[at][:size] for size in range(len(said[at]))] + [said[at] + b"\0"]:
        sides: list[CurveClient | CurveServer] = [client(), server()]
        sides[0].begin()
        for number in range(at):
            sides[(number + 1) % 2].take(said[number])
        side = sides[(at + 1) % 2]
        assert side.take(altered) == b""
        assert side.error, (at, len(altered))


def test_a_command_out_of_its_order_is_refused() -> None:
    ours, theirs, said = under_way()
    for side, body in ((theirs, said[0]), (ours, said[1]), (server(), said[2])):
        side.take(body)
        assert "belongs" in side.error


def test_nothing_is_taken_after_an_error() -> None:
    side = server()
    side.take(b"\x05HELLO")
    why = side.error
    assert side.take(body_of(client().begin())) == b""
    assert side.error == why


def test_a_hello_for_another_server_key_is_refused() -> None:
    side = server(secret=bytes(32))
    side.take(body_of(client(of=S).begin()))
    assert "made for another key" in side.error


def test_a_welcome_of_another_server_is_refused() -> None:
    ours, other = client(), server(secret=b"o" * 32)
    hello = body_of(ours.begin())
    welcome = other._welcome(hello[80:112], shared_key(hello[80:112], other._secret))
    ours.take(body_of(welcome))
    assert "made by another server" in ours.error


def test_a_recorded_initiate_is_refused_on_another_connection() -> None:
    _, _, said = under_way()
    for hello in (said[0], body_of(client(seed=b"another").begin())):
        side = server(seed=b"another")
        side.take(hello)
        side.take(said[2])
        assert "can't be opened" in side.error
        assert side.credentials is None


def test_a_cookie_of_another_connection_is_refused_before_any_curve_work() -> None:
    _, right, said = under_way()
    wrong = server(seed=b"another")
    wrong.take(said[0])
    assert [keys_shared(side, said[2]) for side in (right, wrong)] == [2, 0]
    assert wrong.error


def keys_shared(side: CurveServer, command: bytes) -> int:
    """The number of shared keys, the work of CURVE, that a side computes for a command."""
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is shared_key.__code__

    former = sys.getprofile()
    sys.setprofile(note)
    try:
        side.take(command)
    finally:
        sys.setprofile(former)
    return count


def vouched(vouch: bytes, permanent: bytes, secret_of_vouch: bytes) -> CurveServer:
    """A server that got an INITIATE whose vouch has this content, made with this secret key."""
    ours, theirs = client(), server()
    welcome = body_of(theirs.take(body_of(ours.begin())))
    shown = unseal(welcome[24:], b"WELCOME-" + welcome[8:24], ours._key)
    short, cookie = shown[:32], shown[32:]
    vouch = bytes(16) + seal(vouch, b"VOUCH---" + bytes(16), shared_key(short, secret_of_vouch))
    nonce, key = (2).to_bytes(8), shared_key(short, ours._passing)
    box = seal(permanent + vouch + DEALER, b"CurveZMQINITIATE" + nonce, key)
    theirs.take(b"\x08INITIATE" + cookie + nonce + box)
    return theirs


def test_a_vouch_must_be_of_that_key_for_this_connection_and_this_server() -> None:
    passing, other = client()._public, b"o" * 32
    assert not vouched(passing + public_of(S), public_of(C), C).error
    assert "vouch" in vouched(passing + public_of(other), public_of(C), C).error
    assert "vouch" in vouched(public_of(other) + public_of(S), public_of(C), C).error
    assert "can't be opened" in vouched(passing + public_of(S), public_of(C), other).error
    stolen = vouched(passing + public_of(S), public_of(other), C)
    assert "can't be opened" in stolen.error
    assert stolen.credentials is None


@pytest.mark.parametrize(
    "public", [bytes(32), b"\1" + bytes(31), (2**255 - 19).to_bytes(32, "little"), b"\xff" * 32]
)
def test_a_key_that_hides_nothing_is_refused(public: bytes) -> None:
    side = server()
    hello = bytearray(body_of(client().begin()))
    hello[80:112] = public
    assert side.take(bytes(hello)) == b""
    assert side.error
    theirs = CurveClient(DEALER, MOST, C, public)
    assert theirs.begin() == b""
    assert "server key" in theirs.error
    assert "can't be opened" in vouched(client()._public + public_of(S), public, C).error


def test_a_public_key_has_one_name() -> None:
    alias = public_of(C)[:31] + bytes((public_of(C)[31] | 0x80,))
    assert "can't be opened" in vouched(client()._public + public_of(S), alias, C).error


@pytest.mark.parametrize("at", [6, 7, 8, 79])
def test_a_hello_of_another_version_or_with_padding_is_refused(at: int) -> None:
    hello = bytearray(body_of(client().begin()))
    hello[at] = 2
    side = server()
    side.take(bytes(hello))
    assert "not empty" in side.error


def test_a_hello_whose_box_is_not_empty_is_refused() -> None:
    ours, theirs = client(), server()
    hello = body_of(ours.begin())
    box = seal(bytes(63) + b"\1", b"CurveZMQHELLO---" + hello[112:120], ours._key)
    theirs.take(hello[:120] + box)
    assert "not empty" in theirs.error


def test_boxes_that_are_authentic_and_too_short_are_refused() -> None:
    ours, theirs = client(), server()
    hello = body_of(ours.begin())
    welcome = body_of(theirs.take(hello))
    short = copy.deepcopy(ours)
    short.take(b"\x07WELCOME" + bytes(16) + seal(b"", b"WELCOME-" + bytes(16), ours._key))
    assert "not 160" in short.error
    ours.take(welcome)
    nonce = (2).to_bytes(8)
    cookie = unseal(welcome[24:], b"WELCOME-" + welcome[8:24], shared_key(public_of(S), ours._passing))[32:]
    theirs.take(b"\x08INITIATE" + cookie + nonce + seal(b"", b"CurveZMQINITIATE" + nonce, ours._key))
    assert "less than 248" in theirs.error
    a, b = connected()
    nonce = (3).to_bytes(8)
    b.open(encode([b"\x07MESSAGE" + nonce + seal(b"", FROM_CLIENT + nonce, a._boxes._key)]))
    assert "32 bytes" in b.error


def numbered(body: bytes, at: int, prefix: bytes, key: bytes, nonce: int) -> bytes:
    """The body of a command whose nonce is at ``at``, sealed again under another one."""
    shown = unseal(body[at + 8 :], prefix + body[at : at + 8], key)
    number = nonce.to_bytes(8)
    return body[:at] + number + seal(shown, prefix + number, key)


def test_a_hello_of_nonce_zero_is_refused() -> None:
    for nonce, error in ((1, ""), (0, "does not rise")):
        ours, theirs = client(), server()
        hello = body_of(ours.begin())
        theirs.take(numbered(hello, 112, b"CurveZMQHELLO---", ours._key, nonce))
        assert error in theirs.error
        assert bool(error) == bool(theirs.error)


def test_an_initiate_whose_nonce_does_not_rise_is_refused() -> None:
    for nonce, error in ((2, ""), (1, "does not rise")):
        ours, theirs, said = under_way()
        theirs.take(numbered(said[2], 105, b"CurveZMQINITIATE", ours._key, nonce))
        assert error in theirs.error
        assert bool(error) == bool(theirs.error)


def test_a_ready_of_nonce_zero_is_refused() -> None:
    for nonce, error in ((1, ""), (0, "without a nonce")):
        ours, theirs, said = under_way()
        theirs.take(said[2])
        ready = body_of(theirs.decide(""))
        ours.take(numbered(ready, 6, b"CurveZMQREADY---", theirs._key, nonce))
        assert error in ours.error
        assert bool(error) == bool(ours.error)


def test_metadata_that_cannot_be_read_is_refused() -> None:
    ours, theirs = CurveClient(DEALER[:-1], MOST, C, public_of(S)), server()
    theirs.take(body_of(ours.take(body_of(theirs.take(body_of(ours.begin()))))))
    assert "properties can't be read" in theirs.error
    assert theirs.credentials is None


# --------------------------------------------------------------------- traffic


@pytest.mark.parametrize("message", MESSAGES)
def test_a_flipped_bit_of_a_message_is_refused(message: list[bytes]) -> None:
    a, b = connected()
    a._most_sealed = b._most_sealed = 1000
    sealed, more = a.encode(message), a.encode([b"and more" * 60])
    for altered in flips(sealed):
        side = copy.deepcopy(b)
        opened = side.open(altered + more)
        assert side.error
        assert encode(message).startswith(opened)
        assert opened != encode(message)
        assert side.open(more) == b""


def test_messages_played_back_or_out_of_order_or_lost_are_refused() -> None:
    a, b = connected()
    first, second, third = (a.encode([text]) for text in (b"1", b"2", b"3"))
    for order in ((first, first), (second,), (first, third), (first, second, first), (third, first)):
        side = copy.deepcopy(b)
        opened = side.open(b"".join(order))
        assert "nonce is not the next one" in side.error
        assert len(opened) == 3 * (len(order) - 1) * (order[0] == first)


def test_nothing_is_opened_after_an_error() -> None:
    a, b = connected()
    first, second = a.encode([b"1"]), a.encode([b"2"])
    assert b.open(first + first) == encode([b"1"])
    assert b.open(second) == b""


def test_what_a_side_has_sealed_is_refused_by_itself() -> None:
    a, _ = connected()
    other = connected()[0]
    other._received = 2
    other.open(a.encode([b"to the server"]))
    assert "not authentic" in other.error


def test_frames_that_are_not_sealed_are_refused() -> None:
    for plain in (encode([b"a" * 40]), command(b"ERROR", b"\x03400" + bytes(40)), ping(), encode([b""])):
        _, b = connected()
        assert b.open(plain) == b""
        assert b.error.startswith("broken CURVE")


def test_a_frame_with_other_flags_is_refused() -> None:
    for flags in (MORE, COMMAND, 8, 128):
        a, b = connected()
        sealed = bytearray(a.encode([b"hello"]))
        sealed[0] |= flags
        assert b.open(bytes(sealed)) == b""
        assert "with flags" in b.error


def test_unknown_flags_in_a_box_are_refused() -> None:
    a, b = connected()
    assert b.open(a._seal(3, b"more of a command")) == b""
    assert "flags 0x03 in its box" in b.error


def test_a_frame_over_the_limit_is_refused_by_its_header() -> None:
    a, b = connected()
    b._most_sealed = 33 + 100
    assert b.open(a.encode([b"a" * 100])) == encode([b"a" * 100])
    b.open(a.encode([b"a" * 101])[:2])
    assert "of 133 at most" in b.error


def test_no_nonce_is_used_twice_when_all_are_used() -> None:
    a, b = connected()
    a._sent = b._received = LAST - 1
    last = a.encode([b"last"])
    assert b.open(last) == encode([b"last"])
    assert a.encode([b"one too many"]) == a.seal(ping()) == b""
    assert "all nonces" in a.error
    b.open(last)
    assert b.error


def test_encoded_frames_are_sealed_and_unsealed() -> None:
    a, b = connected()
    encoded = b"".join(map(encode, MESSAGES)) + ping(b"context") + command(b"SUBSCRIBE", b"t" * 300)
    sealed = a.seal(encoded)
    assert a.unseal(sealed) == encoded
    assert b.open(sealed) == encoded
    assert b.unseal(b.seal(ping())) == ping()
    assert b.seal(b"") == b.unseal(b"") == b""


def test_a_message_that_is_sealed_as_frames_or_encoded_has_the_same_bytes() -> None:
    (a, _), (b, _) = connected(), connected()
    for message in MESSAGES:
        assert a.encode(message) == b.seal(encode(message))


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, MOST - 40, MOST])
def test_messages_with_large_frames_are_opened_as_they_were(size: int) -> None:
    a, b = connected()
    message = [b"", b"x" * size, b"y" * 300, b"z" * LARGE, b"end"]
    for sealed in (a.encode(message), a.seal(encode(message))):
        assert in_reads(b, sealed) == a.unseal(sealed) == encode(message)
    assert in_reads(b, a.encode([message[1]])) == encode([message[1]])


def test_a_large_frame_is_opened_in_its_own_memory() -> None:
    a, b = connected()
    sealed = a.encode([b"x" * LARGE])
    assert b.open(sealed[:100]) == b""
    opened = b.open(sealed[100:])
    assert isinstance(opened, memoryview)
    assert opened == encode([b"x" * LARGE])


def test_a_large_frame_takes_memory_as_it_comes() -> None:
    a, b = connected()
    frame = bytes(range(256)) * (MOST // 256)
    sealed = a.encode([b"before"]) + a.encode([frame]) + a.encode([b"after"])
    taken = 70_000
    opened = bytes(b.open(sealed[:taken]))
    assert opened == encode([b"before"])
    while b.missing:
        assert b.held <= taken
        assert b.held + b.missing == MOST + 33
        size = min(b.missing, 100_000)
        opened += b.open(memoryview(sealed)[taken : taken + size])
        taken += size
    assert (b.held, b.missing) == (0, 0)
    opened += b.open(sealed[taken:])
    assert opened == encode([b"before"]) + encode([frame]) + encode([b"after"])


def test_a_flipped_bit_of_a_large_frame_is_refused() -> None:
    a, b = connected()
    sealed = bytearray(a.encode([bytes(LARGE)]))
    sealed[-1] ^= 1
    assert b.open(bytes(sealed[:-1])) == b""
    assert not b.error
    assert b.open(bytes(sealed[-1:])) == b""
    assert "not authentic" in b.error


def test_bytes_of_an_incomplete_frame_are_counted() -> None:
    a, b = connected()
    sealed = a.encode([b"a" * 300])
    b.open(sealed[:100])
    assert (b.held, b.missing) == (100, 0)
    b.open(sealed[100:])
    assert (b.held, b.missing) == (0, 0)


def test_without_memory_for_a_large_frame_the_connection_ends() -> None:
    _, b = connected()
    more_than_any_machine_has = b._most_sealed = 1 << 60
    b.open(b"\x02" + more_than_any_machine_has.to_bytes(8) + bytes(LARGE))
    assert not b.error
    b.open(bytes(2 * MOST))
    assert "no memory for a frame" in b.error


def test_a_size_alone_takes_no_memory() -> None:
    _, b = connected()
    b.open(b"\x02" + (MOST + 33).to_bytes(8))
    assert (b.held, b.missing) == (0, MOST + 33)


@given(
    messages=st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=4), max_size=8),
    large=st.sampled_from([[], [[bytes(LARGE - 20), b""]]]),
    cuts=st.lists(st.integers(0, 5000)),
)
def test_messages_are_opened_in_whatever_pieces_they_come(
    messages: list[list[bytes]], large: list[list[bytes]], cuts: list[int]
) -> None:
    a, b = connected()
    messages = messages + large
    sealed = b"".join(map(a.encode, messages))
    bounds = [0, *sorted(min(cut, len(sealed)) for cut in cuts), len(sealed)]
    opened = b"".join(b.open(sealed[start:stop]) for start, stop in pairwise(bounds))
    assert opened == b"".join(map(encode, messages))
    assert (b.error, b.held, b.missing) == ("", 0, 0)


@given(data=st.binary(max_size=300))
def test_rubbish_is_refused_without_an_exception(data: bytes) -> None:
    sides: list[CurveClient | CurveServer] = [client(), server()]
    sides[0].begin()
    for side, names in ((sides[0], (b"WELCOME", b"READY")), (sides[1], (b"HELLO", b"INITIATE"))):
        for name in names:
            dialog = copy.deepcopy(side)
            dialog.take(bytes((len(name),)) + name + data)
            assert dialog.error
            assert dialog.credentials is None
    _, b = connected()
    assert b.open(data) == b""
    b.open(b"\0\x2a\x07MESSAGE" + data)


# ------------------------------------------------------------------- libraries

WITHOUT_PYNACL = """
import sys
sys.modules["nacl"] = None
from sluicemq_devices.zmtp.curve import curve_client, curve_server, load
key = bytes(32)
for make in (load, lambda: curve_server(b"", 1, key), lambda: curve_client(b"", 1, key, key)):
    try:
        make()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_pynacl_one_sentence_names_the_extra() -> None:
    said = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_PYNACL], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert len(said) == 3
    for line in said:
        assert line.startswith("UnavailableError CURVE needs PyNaCl: pip install '")
        assert "[curve]'" in line
