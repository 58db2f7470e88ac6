from __future__ import annotations

import pytest

from sluicemq_devices.zmtp import NULL, Credentials, ready_property
from sluicemq_devices.zmtp.null import Null

DEALER = ready_property(b"Socket-Type", b"DEALER")
REP = ready_property(b"Socket-Type", b"REP")
READY = b"\x05READY"


def test_with_null_both_sides_say_ready_at_once_and_are_done_when_admitted() -> None:
    ours, theirs = Null(DEALER), Null(REP)
    assert ours.take(theirs.begin()[2:]) == theirs.take(ours.begin()[2:]) == b""
    assert (ours.properties, theirs.properties) == ({b"socket-type": b"REP"}, {b"socket-type": b"DEALER"})
    assert ours.credentials == Credentials(NULL)
    assert not ours.done
    assert ours.decide("") == b""
    assert ours.done
    assert ours.traffic is None


def test_a_peer_that_null_refuses_gets_nothing() -> None:
    side = Null(DEALER)
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
    side = Null(DEALER)
    assert side.take(body) == b""
    assert side.error == error
    assert side.credentials is None


def test_null_takes_ready_once() -> None:
    side = Null(DEALER)
    side.take(READY + REP)
    side.take(READY + REP)
    assert side.error.endswith("where nothing belongs")
