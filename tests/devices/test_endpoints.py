from __future__ import annotations

import pytest

from sluicemq_devices.sockets import Endpoint, host_and_port, parse_endpoint, tcp_address, unix_path
from sluicemq_devices.sockets.endpoints import source_of


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("tcp://127.0.0.1:5551", Endpoint("tcp://127.0.0.1:5551", bind=True)),
        ("@tcp://*:0", Endpoint("tcp://*:0", bind=True)),
        (">tcp://jobs.example:5551", Endpoint("tcp://jobs.example:5551", bind=False)),
        (">tcp://[::1]:5551", Endpoint("tcp://[::1]:5551", bind=False)),
        (">ipc:///run/jobs", Endpoint("ipc:///run/jobs", bind=False)),
        ("ipc:///run/jobs", Endpoint("ipc:///run/jobs", bind=True)),
        ("tcp://*:*", Endpoint("tcp://*:*", bind=True)),
        ("tcp://eth0:*", Endpoint("tcp://eth0:*", bind=True)),
        ("@ipc://*", Endpoint("ipc://*", bind=True)),
        ("ipc://@jobs", Endpoint("ipc://@jobs", bind=True)),
        (">ipc://@jobs", Endpoint("ipc://@jobs", bind=False)),
        ("ipc://jobs", Endpoint("ipc://jobs", bind=True)),
        (">tcp://lo:*;host:1", Endpoint("tcp://lo:*;host:1", bind=False)),
        (">tcp://[::1]:0;[::1]:1", Endpoint("tcp://[::1]:0;[::1]:1", bind=False)),
    ],
)
def test_an_endpoint_binds_unless_it_is_marked_to_connect(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "neither tcp:// nor ipc://"),
        ("udp://127.0.0.1:1", "neither tcp:// nor ipc://"),
        ("tcp://5551", "host or port is missing"),
        ("tcp://:5551", "host or port is missing"),
        ("tcp://::1:5551", "needs brackets"),
        ("tcp://[::1:5551", "needs brackets"),
        ("tcp://[127.0.0.1]:5551", "no IPv6 address"),
        ("tcp://[::1%]:5551", "no IPv6 address"),
        ("tcp://127.0.0.256:5551", "no IPv4 address"),
        ("tcp://a..b:5551", "is no host"),
        (f">tcp://{'a' * 64}.example:5551", "is no host"),
        (">tcp://bücher.example:5551", "ASCII"),
        (">tcp://[::1]:0;127.0.0.1:1", "one family"),
        ("ipc:///\udcff", "UTF-8"),
        ("tcp://localhost:" + "9" * 5000, "is not a port"),
        ("tcp://localhost:x", "'x' is not a port"),
        ("tcp://localhost:65536", "'65536' is not a port"),
        ("tcp://localhost:٣", "is not a port"),
        (">tcp://localhost:0", "needs a real host and port"),
        (">tcp://*:5551", "needs a real host and port"),
        (">tcp://localhost:*", "needs a real host and port"),
        (">tcp://localhost:00", "needs a real host and port"),
        (">tcp://lo:0;*:1", "needs a real host and port"),
        (">tcp://lo;host:1", "host or port is missing"),
        ("tcp://lo:0;lo:1", "only an end that connects"),
        ("ipc://", "the path is missing"),
        ("ipc://@", "the path is missing"),
        (">ipc://*", "needs a real path"),
        ("ipc:///a\0b", "no zero bytes"),
        ("ipc:///" + "x" * 107, "longer than 107 bytes"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_what_is_wrong_and_what_to_write(text: str, what: str) -> None:
    with pytest.raises(ValueError, match="write tcp://HOST:PORT") as refused:
        parse_endpoint(text)
    assert what in str(refused.value)
    assert repr(text) in str(refused.value)


def test_an_endpoint_is_shown_with_its_mark() -> None:
    assert str(parse_endpoint("tcp://127.0.0.1:1")) == "@tcp://127.0.0.1:1"
    assert str(parse_endpoint(">ipc:///a")) == ">ipc:///a"


@pytest.mark.parametrize(
    ("address", "place"),
    [("tcp://a:1", ("a", 1)), ("tcp://*:0", ("", 0)), ("tcp://[::1]:2", ("::1", 2)), ("tcp://*:3", ("", 3))],
)
def test_hosts_and_ports_come_apart_and_together_again(address: str, place: tuple[str, int]) -> None:
    assert host_and_port(address) == place
    assert tcp_address(*place) == address


@pytest.mark.parametrize(
    ("text", "is_any"),
    [
        ("tcp://*:*", True),
        ("tcp://lo:0", True),
        ("ipc://*", True),
        ("tcp://*:5550", False),
        ("ipc:///a:0", False),
        (">tcp://*:0;host:1", False),
    ],
)
def test_an_end_that_binds_anywhere_is_known(text: str, *, is_any: bool) -> None:
    assert parse_endpoint(text).is_any == is_any


def test_where_a_connection_comes_from_is_before_where_it_goes() -> None:
    address = "tcp://lo:*;[::1]:5551"
    assert (source_of(address), host_and_port(address)) == (("lo", 0), ("::1", 5551))
    assert source_of("tcp://[::1]:5551") is None


def test_the_name_of_an_abstract_socket_begins_with_a_zero() -> None:
    assert unix_path("ipc://@jobs") == "\0jobs"
    assert unix_path("ipc:///run/jobs") == "/run/jobs"


@pytest.mark.parametrize(
    ("text", "is_exposed"),
    [
        ("tcp://127.0.0.1:5550", False),
        ("tcp://127.8.9.1:*", False),
        ("tcp://[::1]:5550", False),
        ("tcp://[::ffff:127.0.0.1]:5550", False),
        ("tcp://localhost:5550", False),
        ("tcp://lo:5550", False),
        ("ipc:///run/jobs", False),
        (">tcp://192.0.2.1:5550", False),
        ("tcp://*:5550", True),
        ("tcp://0.0.0.0:5550", True),
        ("tcp://[::]:5550", True),
        ("tcp://192.0.2.1:0", True),
        ("tcp://eth0:5550", True),
        ("tcp://mq.example.com:5550", True),
    ],
)
def test_an_end_that_other_machines_can_reach_is_known(text: str, *, is_exposed: bool) -> None:
    assert parse_endpoint(text).is_exposed == is_exposed
