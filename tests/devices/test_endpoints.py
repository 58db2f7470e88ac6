from __future__ import annotations

import pytest

from devices.endpoints import Endpoint, host_and_port, parse, tcp_address


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("tcp://127.0.0.1:5551", Endpoint("tcp://127.0.0.1:5551", bind=True)),
        ("@tcp://*:0", Endpoint("tcp://*:0", bind=True)),
        (">tcp://jobs.example:5551", Endpoint("tcp://jobs.example:5551", bind=False)),
        (">tcp://[::1]:5551", Endpoint("tcp://[::1]:5551", bind=False)),
        (">ipc:///run/jobs", Endpoint("ipc:///run/jobs", bind=False)),
        ("ipc:///run/jobs", Endpoint("ipc:///run/jobs", bind=True)),
    ],
)
def test_an_endpoint_binds_unless_it_is_marked_to_connect(text: str, endpoint: Endpoint) -> None:
    assert parse(text) == endpoint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "neither tcp:// nor ipc://"),
        ("udp://127.0.0.1:1", "neither tcp:// nor ipc://"),
        ("tcp://5551", "host or port is missing"),
        ("tcp://:5551", "host or port is missing"),
        ("tcp://::1:5551", "needs brackets"),
        ("tcp://localhost:x", "'x' is not a port"),
        ("tcp://localhost:65536", "'65536' is not a port"),
        ("tcp://localhost:٣", "is not a port"),
        (">tcp://localhost:0", "needs a real host and port"),
        (">tcp://*:5551", "needs a real host and port"),
        ("ipc://jobs", "must begin with /"),
        ("ipc:///" + "x" * 107, "longer than 107 bytes"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_what_is_wrong_and_what_to_write(text: str, what: str) -> None:
    with pytest.raises(ValueError, match="write tcp://HOST:PORT") as refused:
        parse(text)
    assert what in str(refused.value)
    assert repr(text) in str(refused.value)


def test_an_endpoint_is_shown_with_its_mark() -> None:
    assert str(parse("tcp://127.0.0.1:1")) == "@tcp://127.0.0.1:1"
    assert str(parse(">ipc:///a")) == ">ipc:///a"


@pytest.mark.parametrize(
    ("address", "place"),
    [("tcp://a:1", ("a", 1)), ("tcp://[::1]:2", ("::1", 2)), ("tcp://*:3", ("", 3))],
)
def test_hosts_and_ports_come_apart_and_together_again(address: str, place: tuple[str, int]) -> None:
    assert host_and_port(address) == place
    assert tcp_address(*place) == address
