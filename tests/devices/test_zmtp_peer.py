from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import resident
from sluicemq_devices.zmtp import LARGE, PING, FramePeer, Message, RawPeer, encode, encode_large, first_frame
from sluicemq_devices.zmtp.greeting import GREETING
from sluicemq_devices.zmtp.messages import MOST_AT_ONCE, MOST_RAW_AT_ONCE
from sluicemq_devices.zmtp.peer import MOST_FRAMES

#: What libzmq 4.3.5 sends for each kind of socket.
LIBZMQ_GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(16 + 1 + 31)
LIBZMQ_READY = {
    "DEALER": b"\x04)\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",
    "named DEALER": b"\x04+\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02me",
    "REP": b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REP",
    "PULL": b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PULL",
    "SUB": b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB",
    "PUSH": b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH",
    "PUB": b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB",
}
LIBZMQ_PING = b"\x04\x07\x04PING\0\0"
MOST_BYTES = 200_000


class Talk:
    """A peer, what it has said, and what came out of it."""

    form: Any = FramePeer

    def __init__(self, kind: str = "DEALER", most_bytes: int = MOST_BYTES) -> None:
        self.said = b""
        self.messages: list[Any] = []
        self.most = 0
        self.peer = self.form(kind, most_bytes, self._say)
        self.peer.greet()

    def hear(self, data: bytes) -> Talk:
        """Feed it as a lane does."""
        while data and not self.peer.error:
            count = self.peer.missing or len(data)
            self._took(self.peer.take(data[:count]))
            data = data[count:]
        return self

    def _took(self, messages: list[Any]) -> None:
        self.most = max(self.most, len(messages))
        self.messages += messages
        if self.peer.credentials:
            self.peer.decide("")
            self._took(self.peer.take())
        while self.peer.behind:
            self._took(self.peer.take())

    def _say(self, data: bytes) -> None:
        self.said += data


class RawTalk(Talk):
    """The same of one that hands over messages as they came."""

    form = RawPeer


def ready(
    kind: str = "DEALER", other: str = "REP", most_bytes: int = MOST_BYTES, talks: type[Talk] = Talk
) -> Talk:
    talk = talks(kind, most_bytes).hear(LIBZMQ_GREETING + LIBZMQ_READY[other])
    assert talk.peer.ready
    assert not talk.peer.error
    talk.said = b""
    return talk


def frame(flags: int, body: bytes = b"") -> bytes:
    return bytes((flags, len(body))) + body


# ------------------------------------------------------------------ golden bytes


def test_its_handshake_is_that_of_libzmq() -> None:
    # Its greeting is in two parts, as that of libzmq: the mechanism when the other has said its own
    talk = Talk()
    assert talk.said == GREETING[:12]
    talk.hear(LIBZMQ_GREETING[:11])
    assert talk.said == GREETING[:12]
    talk.hear(LIBZMQ_GREETING[11:31])
    assert talk.said == GREETING[:12]
    talk.hear(LIBZMQ_GREETING[31:40])
    assert talk.said == b"\xff" + bytes(8) + LIBZMQ_GREETING[9:] == GREETING
    talk.hear(LIBZMQ_GREETING[40:])
    assert talk.said == GREETING + LIBZMQ_READY["DEALER"]
    assert not talk.peer.ready
    talk.hear(LIBZMQ_READY["REP"])
    assert talk.peer.ready


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ([b""], b"\0\0"),
        ([b"x" * 255], b"\0\xff" + b"x" * 255),
        ([b"x" * 256], b"\x02\0\0\0\0\0\0\x01\0" + b"x" * 256),
        ([b"", b"job"], b"\x01\0" + b"\0\x03job"),
        (
            [b"a" * 256, b"", b"b" * 300],
            b"\x03\0\0\0\0\0\0\x01\0" + b"a" * 256 + b"\x01\0" + b"\x02\0\0\0\0\0\0\x01\x2c" + b"b" * 300,
        ),
    ],
    ids=["empty", "255 bytes", "256 bytes", "two frames", "three frames"],
)
def test_messages_are_those_of_libzmq(message: Message, data: bytes) -> None:
    assert encode(message) == data
    assert b"".join(encode_large(message)) == data
    assert ready().hear(data).messages == [message]


def test_no_large_frame_is_copied_to_be_sent() -> None:
    large = bytes(LARGE)
    parts = encode_large([b"head", large, b"tail"])
    assert any(part is large for part in parts)
    assert b"".join(parts) == encode([b"head", large, b"tail"])


def test_a_ping_is_answered_with_its_context_and_is_that_of_libzmq() -> None:
    assert PING == LIBZMQ_PING
    assert ready().hear(LIBZMQ_PING).said == b"\x04\x05\x04PONG"
    assert ready().hear(b"\x04\x0a\x04PING\0\x05abc").said == b"\x04\x08\x04PONGabc"


def test_messages_of_a_router_begin_with_the_identity_of_its_peer() -> None:
    assert ready("ROUTER", "named DEALER").hear(b"\x01\0\0\x01q" * 2).messages == [[b"me", b"", b"q"]] * 2
    assert ready("ROUTER", "DEALER").hear(b"\0\x01q").messages == [[b"\0", b"q"]]


def test_subscriptions_come_as_messages_whatever_their_form() -> None:
    talk = ready("XPUB", "SUB").hear(
        b"\0\x06\x01topic" + frame(4, b"\x09SUBSCRIBEtopic") + frame(4, b"\x06CANCELtopic")
    )
    assert talk.messages == [[b"\x01topic"], [b"\x01topic"], [b"\0topic"]]


def test_subscriptions_are_those_of_the_zmtp_that_the_peer_speaks() -> None:
    newer, older = Talk("XSUB"), Talk("XSUB")
    newer.hear(LIBZMQ_GREETING + LIBZMQ_READY["PUB"])
    older.hear(LIBZMQ_GREETING[:11] + b"\0" + LIBZMQ_GREETING[12:] + LIBZMQ_READY["PUB"])
    assert newer.peer.ready
    assert older.peer.ready
    assert newer.peer.subscription(b"topic", on=True) == frame(4, b"\x09SUBSCRIBEtopic")
    assert newer.peer.subscription(b"topic", on=False) == frame(4, b"\x06CANCELtopic")
    assert older.peer.subscription(b"topic", on=True) == b"\0\x06\x01topic"
    assert older.peer.subscription(b"topic", on=False) == b"\0\x06\0topic"


def test_commands_that_mean_nothing_here_are_passed_over() -> None:
    talk = ready().hear(frame(4, b"\x05WHAT?x") + frame(1, b"a") + frame(4, b"\x04PONG") + frame(0, b"b"))
    assert (talk.messages, talk.said, talk.peer.error) == ([[b"a", b"b"]], b"", "")


# ---------------------------------------------------------------- who is cut


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "it does not speak ZMTP 3, but sent b'GET / HTTP/1.1"),
        (b"\x01\0\0\x05hello", "it does not speak ZMTP 3, but sent"),
        (b"\xff" + bytes(8) + b"\x7e", "it does not speak ZMTP 3, but sent"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "an older one: its ZeroMQ is from before 2013"),
        (GREETING[:12] + b"CURVE" + GREETING[17:], "the mechanism b'CURVE', and only NULL"),
        (GREETING + b"\0\x05hello", "a frame with flags 0x00 where READY belongs"),
        (GREETING + b"\x05\x05hello", "a frame with flags 0x05"),
        (GREETING + frame(4, b"\x04PING\0\0"), "where READY belongs"),
        (GREETING + frame(4, b"\x05ERROR\x05no !!"), "it says ERROR: 'no !!'"),
        (GREETING + frame(4, b"\x05READY\x0bSocket-Type\0\0\1\0REP"), "properties can't be read"),
        (GREETING + frame(4, b"\x05READY"), "it is a  socket, here is a DEALER for REP, DEALER, ROUTER"),
        (GREETING + LIBZMQ_READY["PULL"], "it is a PULL socket, here is a DEALER"),
        (GREETING + LIBZMQ_READY["REP"] + frame(8), "a frame with flags 0x08"),
        (GREETING + LIBZMQ_READY["REP"] + frame(4, b"\x05ERROR\x03why"), "it says ERROR: 'why'"),
        (GREETING + LIBZMQ_READY["REP"] + frame(4), "a command without a name"),
        (GREETING + LIBZMQ_READY["REP"] + frame(4, b"\x09PING"), "a command without a name"),
        (GREETING + LIBZMQ_READY["REP"] + b"\x06" + (1 << 40).to_bytes(8), "a command of 10995"),
    ],
)
def test_who_breaks_the_protocol_is_cut_for_a_reason_however_its_bytes_come(data: bytes, reason: str) -> None:
    assert reason in Talk().hear(data).peer.error
    in_pieces = _in_pieces(Talk(), data, [1] * len(data)).peer.error
    assert reason.split(", but sent", maxsplit=1)[0] in in_pieces


def test_a_socket_of_the_wrong_kind_is_told_so() -> None:
    said = Talk("PUSH").hear(GREETING + LIBZMQ_READY["REP"]).said
    assert b"\x05ERROR" in said
    assert b"it is a REP socket, here is a PUSH for PULL" in said


@pytest.mark.parametrize("length", [1001, 1 << 40, (1 << 64) - 1])
def test_a_frame_over_the_limit_is_cut_at_its_header(length: int) -> None:
    talk = ready(most_bytes=1000).hear(frame(0, b"before") + b"\x02" + length.to_bytes(8))
    assert talk.messages == [[b"before"]]
    assert "a frame over the limit" in talk.peer.error


@pytest.mark.parametrize("form", [Talk, RawTalk])
def test_a_message_over_the_limit_is_cut_and_one_of_just_that_size_is_not(form: type[Talk]) -> None:
    halves = frame(1, bytes(200)) + frame(0, bytes(100))
    assert len(ready(most_bytes=300, talks=form).hear(halves * 3).messages) == 3
    assert "too many bytes: 300, more than 299" in ready(most_bytes=299, talks=form).hear(halves).peer.error
    assert len(ready(most_bytes=100, talks=form).hear(frame(0, bytes(100)) * 3).messages) == 3
    assert "a frame over the limit" in ready(most_bytes=99, talks=form).hear(frame(0, bytes(100))).peer.error


@pytest.mark.parametrize(
    ("kind", "other", "form"),
    [("DEALER", "REP", Talk), ("ROUTER", "DEALER", Talk), ("ROUTER", "DEALER", RawTalk)],
)
def test_a_message_of_too_many_frames_is_cut(kind: str, other: str, form: type[Talk]) -> None:
    most = b"\x01\0" * (MOST_FRAMES - 1)
    assert len(ready(kind, other, talks=form).hear(most + b"\0\0").messages) == 1
    assert "too many frames" in ready(kind, other, talks=form).hear(most + b"\x01\0\0\0").peer.error


@pytest.mark.parametrize("form", [Talk, RawTalk])
def test_large_frames_count_towards_their_message_too(form: type[Talk]) -> None:
    large = b"\x03" + (LARGE * 2).to_bytes(8) + bytes(LARGE * 2)
    assert "too many bytes" in ready(most_bytes=LARGE * 3, talks=form).hear(large).hear(large).peer.error


@pytest.mark.parametrize(("form", "most"), [(Talk, MOST_AT_ONCE), (RawTalk, MOST_RAW_AT_ONCE)])
def test_many_small_messages_come_a_few_hundred_at_a_time(form: type[Talk], most: int) -> None:
    talk = ready(talks=form)
    talk.peer.most = talk.peer.limit
    talk.hear(b"\0\0" * 10_000)
    assert len(talk.messages) == 10_000
    assert talk.most == most


@pytest.mark.parametrize(("form", "most"), [(Talk, MOST_AT_ONCE), (RawTalk, MOST_RAW_AT_ONCE)])
def test_a_long_turn_is_followed_by_shorter_ones_and_short_by_longer(form: type[Talk], most: int) -> None:
    peer = ready(talks=form).peer
    peer.most = 200
    peer.pace(took=0.020, longest=0.002)
    assert peer.most == 20
    peer.pace(took=0.0015, longest=0.002)
    assert peer.most == 20
    peer.pace(took=9.0, longest=0.002)
    assert peer.most == 1
    for _ in range(20):
        peer.pace(took=0.0001, longest=0.002)
    assert peer.most == most


@pytest.mark.parametrize(
    ("heard", "reason"),
    [
        (b"", "sent nothing"),
        (GREETING[:20], "never finished its ZMTP greeting"),
        (GREETING, "READY command is missing"),
    ],
)
def test_who_is_late_is_told_apart(heard: bytes, reason: str) -> None:
    assert reason in Talk().hear(heard).peer.late


# -------------------------------------------------------------------- any split


def _in_pieces(talk: Talk, data: bytes, lengths: Iterable[int]) -> Talk:
    for length in lengths:
        talk.hear(data[:length])
        data = data[length:]
    return talk.hear(data)


_BODIES = st.one_of(
    st.binary(max_size=5), st.sampled_from([bytes(255), bytes(256), b"x" * LARGE, b"y" * (LARGE + 1)])
)
_MESSAGE = st.lists(_BODIES, min_size=1, max_size=4).filter(
    lambda frames: sum(map(len, frames)) <= MOST_BYTES
)
_MESSAGES = st.lists(_MESSAGE, max_size=6)


@given(_MESSAGES, st.lists(st.integers(1, 100_000), max_size=20), st.sampled_from(["DEALER", "ROUTER"]))
def test_cuts_into_chunks_change_nothing(messages: list[Message], lengths: list[int], kind: str) -> None:
    stream = LIBZMQ_GREETING + LIBZMQ_READY["DEALER"] + b"".join(map(encode, messages))
    talk = _in_pieces(Talk(kind), stream, lengths)
    prefix = [b"\0"] if kind == "ROUTER" else []
    assert talk.messages == [prefix + message for message in messages]
    assert not talk.peer.error


_COMMANDS = st.lists(st.sampled_from([b"", LIBZMQ_PING, frame(4, b"\x04PONG"), frame(4, b"\x05WHAT?x")]))


@given(_MESSAGES, _COMMANDS, st.lists(st.integers(1, 100_000), max_size=20))
def test_messages_are_handed_over_raw_as_they_were_sent_however_they_come(
    messages: list[Message], commands: list[bytes], lengths: list[int]
) -> None:
    # Given messages, and commands between them and between their frames, as libzmq sends heartbeats
    pieces = [
        _frame(body, more=at < len(message) - 1) for message in messages for at, body in enumerate(message)
    ]
    stream = b"".join(
        piece + (commands[at % len(commands)] if commands else b"") for at, piece in enumerate(pieces)
    )
    raw = _in_pieces(ready("PULL", "PUSH", talks=RawTalk), stream, lengths)
    framed = _in_pieces(ready("PULL", "PUSH"), stream, lengths)
    assert framed.messages == messages
    assert raw.messages == [encode(message) for message in messages]
    assert (raw.said, raw.peer.error) == (framed.said, "")
    assert [first_frame(message) for message in raw.messages] == [message[0] for message in messages]


@given(st.binary(max_size=300), st.lists(st.integers(1, 30), max_size=20))
def test_noise_never_raises_and_both_forms_see_the_same_in_it(noise: bytes, lengths: list[int]) -> None:
    for talk in (Talk("XPUB"), Talk("XPUB").hear(GREETING), RawTalk("XPUB")):
        _in_pieces(talk, noise, lengths)
    framed, raw = (_in_pieces(ready("XPUB", "SUB", 500, talks), noise, lengths) for talks in (Talk, RawTalk))
    assert (framed.said, framed.peer.error) == (raw.said, raw.peer.error)
    assert [_frames(message) for message in raw.messages] == framed.messages


def _frame(body: bytes, *, more: bool) -> bytes:
    size = bytes((more, len(body))) if len(body) < 256 else bytes((more | 2,)) + len(body).to_bytes(8)
    return size + body


def _frames(raw: bytes) -> Message:
    """What another reader makes of a raw message."""
    return list(ready().hear(raw).messages[0])


def test_long_noise_is_cut() -> None:
    for seed in range(200):
        noise = random.Random(seed).randbytes(5000)
        assert Talk().hear(noise).peer.error
        assert Talk().hear(GREETING + noise).peer.error


def test_many_frames_of_a_large_message_are_put_together_in_no_time() -> None:
    message = [b"x" * 16] * MOST_FRAMES
    began = time.process_time()
    parts = encode_large(message)
    assert time.process_time() - began < 5  # it takes 0.03
    assert b"".join(parts) == encode(message)


def test_the_size_of_a_frame_alone_takes_no_memory() -> None:
    before = resident()
    talk = ready(most_bytes=1 << 30)
    talk.hear(b"\x02" + (512 << 20).to_bytes(8) + b"beginning")
    assert talk.peer.missing == (512 << 20) - 9
    assert resident() - before < 64 << 20


@pytest.mark.parametrize("form", [Talk, RawTalk])
def test_one_whose_large_frame_there_is_no_memory_for_is_cut(form: type[Talk]) -> None:
    more_than_any_machine_has = 1 << 60
    talk = ready(most_bytes=1 << 61, talks=form)
    talk.hear(b"\x02" + more_than_any_machine_has.to_bytes(8) + bytes(LARGE))
    assert not talk.peer.error
    assert "no memory for a frame" in talk.hear(bytes(2 << 20)).peer.error


@pytest.mark.parametrize("form", [Talk, RawTalk])
@pytest.mark.parametrize("size", [LARGE, 1 << 20, 40 << 20])
def test_memory_follows_what_has_come_of_a_frame_not_its_size(form: type[Talk], size: int) -> None:
    before = resident()
    talks = [ready(most_bytes=1 << 30, talks=form) for _ in range(1000)]
    for talk in talks:
        talk.hear(b"\x02" + size.to_bytes(8))
    assert resident() - before < 40 << 20
    assert all(talk.peer.unfinished < 16 << 10 for talk in talks)


@pytest.mark.parametrize("form", [Talk, RawTalk])
@pytest.mark.parametrize("size", [LARGE, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20])
@pytest.mark.parametrize("piece", [1000, 20_000, 262_144])
def test_a_large_frame_is_whole_and_weighs_what_came_of_it(form: type[Talk], size: int, piece: int) -> None:
    body = random.Random(size).randbytes(size)
    talk = ready(most_bytes=1 << 30, talks=form)
    stream = b"\x01\x03one\x02" + size.to_bytes(8) + body
    for at in range(0, len(stream), piece):
        came = stream[at : at + piece]
        talk.hear(came)
        if not talk.messages and at + len(came) > LARGE:
            assert 0 <= talk.peer.unfinished - (at + len(came)) < 200
    assert talk.messages == [[b"one", body] if form is Talk else stream]
    assert talk.peer.unfinished == 0


@pytest.mark.parametrize(("form", "kind"), [(Talk, "DEALER"), (Talk, "ROUTER"), (RawTalk, "DEALER")])
def test_tiny_frames_weigh_what_python_takes_for_them(form: type[Talk], kind: str) -> None:
    talk = ready(kind, "DEALER", talks=form)
    talk.hear(b"\x01\x00" * 10_000)
    assert talk.peer.unfinished >= 10_000 * 40
    talk.hear(b"\x00\x00")
    assert talk.peer.unfinished == 0


@pytest.mark.parametrize(
    ("greeting", "said", "knows"),
    [
        (LIBZMQ_GREETING, b"", True),
        (LIBZMQ_GREETING[:11] + b"\0" + LIBZMQ_GREETING[12:], b"", False),
        (LIBZMQ_GREETING[:11] + b"\0" + LIBZMQ_GREETING[12:], PING, True),
        (LIBZMQ_GREETING[:11] + b"\0" + LIBZMQ_GREETING[12:], frame(4, b"\x04PONG"), True),
        (LIBZMQ_GREETING[:11] + b"\0" + LIBZMQ_GREETING[12:], frame(4, b"\x05WHAT?x"), False),
    ],
    ids=["3.1", "3.0", "3.0, sends PING", "3.0, sends PONG", "3.0, sends another command"],
)
def test_heartbeats_are_known_by_version_or_use(greeting: bytes, said: bytes, *, knows: bool) -> None:
    talk = Talk().hear(greeting + LIBZMQ_READY["REP"] + said)
    assert talk.peer.ready
    assert talk.peer.knows_ping is knows


@pytest.mark.parametrize(
    ("said", "offered"),
    [
        (b"", ""),
        (GREETING[:5], "the first 5 bytes of a greeting"),
        (GREETING[:10], "a greeting that ends before its version: as of a ZeroMQ from before 2013"),
        (GREETING[:12], "ZMTP 3.1, no mechanism"),
        (GREETING, "ZMTP 3.1, the mechanism b'NULL', no READY command"),
    ],
)
def test_what_one_has_offered_who_leaves_within_the_handshake(said: bytes, offered: str) -> None:
    assert Talk().hear(said).peer.offered.startswith(offered)
    assert bool(Talk().hear(said).peer.offered) == bool(offered)


@pytest.mark.parametrize("form", [Talk, RawTalk])
def test_commands_take_turns_like_messages(form: type[Talk]) -> None:
    talk = ready(talks=form)
    talk.peer.most = talk.peer.limit
    talk.peer.take(PING * (MOST_AT_ONCE + 1))
    assert talk.peer.behind
    assert talk.said.count(b"PONG") == MOST_AT_ONCE
    talk.peer.take()
    assert talk.said.count(b"PONG") == MOST_AT_ONCE + 1


def test_a_ready_that_is_too_long_is_cut_at_its_header() -> None:
    talk = Talk("DEALER")
    talk.hear(GREETING + b"\x06" + (8193).to_bytes(8))
    assert "READY command of 8193 bytes" in talk.peer.error
