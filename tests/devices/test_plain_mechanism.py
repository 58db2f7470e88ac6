"""PLAIN: our two sides with each other, with what was altered, and with libzmq."""

from __future__ import annotations

import pytest

from devices.mechanism_wire import DEALER, ROUTER, body_of, shake_hands
from sluicemq_devices.zmtp import PLAIN, Credentials, PlainClient, PlainServer
from sluicemq_devices.zmtp.mechanism import REFUSAL

HELLO = b"\x05HELLO\x04anna\x06secret"


def under_way() -> PlainServer:
    """A server that has admitted a client."""
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
