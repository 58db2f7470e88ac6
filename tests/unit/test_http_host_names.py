"""By which names the HTTP door may be called, and whose pages may give orders."""

from __future__ import annotations

import pytest

from sluicemq_broker.http.host_names import HostNames

LOCAL, OPEN = "127.0.0.1:5580", "0.0.0.0:5580"


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "LOCALHOST", "LocalHost:5580", "localhost.", "127.0.0.1", "[::1]:80", "10.0.0.7:5580"],
)
def test_a_local_door_is_called_by_an_address_or_as_localhost(host: str) -> None:
    assert HostNames(LOCAL, ()).may_be_called(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a:b", "localhost:x", "::1:"],
)
def test_it_is_called_by_no_other_name(host: str) -> None:
    assert not HostNames(LOCAL, ()).may_be_called(host)
    assert not HostNames(LOCAL, ("mq.example.com",)).may_be_called(host)


@pytest.mark.parametrize("host", ["mq.example.com", "MQ.Example.com:8443", "mq.example.com."])
@pytest.mark.parametrize("address", [LOCAL, OPEN])
def test_names_of_the_configuration_are_names_of_the_door(address: str, host: str) -> None:
    assert HostNames(address, ("MQ.example.com",)).may_be_called(host)


def test_an_open_door_without_names_is_called_as_anybody_likes_and_with_names_by_them_alone() -> None:
    assert HostNames(OPEN, ()).may_be_called("any.example")
    assert not HostNames(OPEN, ("mq.example.com",)).may_be_called("any.example")
    assert HostNames(OPEN, ("mq.example.com",)).may_be_called("10.0.0.7")


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://127.0.0.1:5580", "127.0.0.1:5580", True),
        ("http://Localhost:5580", "localhost:5580", True),
        ("https://mq.example.com", "127.0.0.1:5580", True),
        ("https://mq.example.com:8443", "mq.example.com", True),
        ("https://mq.example.com:9000", "127.0.0.1:5580", False),
        ("https://evil.example", "127.0.0.1:5580", False),
        ("null", "", False),
        ("", "", False),
        ("http://[", "[", False),
    ],
)
def test_an_order_comes_from_a_page_of_the_door(origin: str, host: str, *, own: bool) -> None:
    assert HostNames(LOCAL, ("mq.example.com", "mq.example.com:8443")).is_own_page(origin, host) == own
