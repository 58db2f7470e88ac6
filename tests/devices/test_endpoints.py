"""Every form of an address that libzmq takes."""

import contextlib
import os
import re
import shutil
import socket as names
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import gevent
import pytest
import zmq
from gevent import socket as sockets

from devices.plain_sockets import ANY_PORT, Clients, eventually, receive, send, shake_hands
from sluicemq_devices.relays import Streamer
from sluicemq_devices.sockets import (
    Endpoint,
    RawDoor,
    Switchboard,
    host_and_port,
    parse_endpoint,
    tcp_address,
    unix_path,
)
from sluicemq_devices.sockets.endpoints import source_of
from sluicemq_devices.sockets.resolving import listen, remove_left_over


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
        ("tcp://localhost:5550", False), ("tcp://lo:5550", False), ("ipc:///run/jobs", False),
        (">tcp://192.0.2.1:5550", False), ("tcp://*:5550", True), ("tcp://0.0.0.0:5550", True),
        ("tcp://[::]:5550", True), ("tcp://192.0.2.1:0", True), ("tcp://eth0:5550", True),
        ("tcp://mq.example.com:5550", True),
    ],
)  # fmt: skip
def test_an_end_that_other_machines_can_reach_is_known(text: str, *, is_exposed: bool) -> None:
    assert parse_endpoint(text).is_exposed == is_exposed


Started = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("wanted", "real"),
    [
        ("tcp://*:*", r"tcp://0\.0\.0\.0:\d+"),
        ("tcp://*:0", r"tcp://0\.0\.0\.0:\d+"),
        ("tcp://127.0.0.1:*", r"tcp://127\.0\.0\.1:\d+"),
        ("tcp://localhost:0", r"tcp://localhost:\d+"),
        ("tcp://lo:*", r"tcp://127\.0\.0\.1:\d+"),
        ("tcp://[::]:*", r"tcp://\[::\]:\d+"),
        ("tcp://[::1]:0", r"tcp://\[::1\]:\d+"),
        ("tcp://[::ffff:127.0.0.1]:0", r"tcp://\[::ffff:127\.0\.0\.1\]:\d+"),
        ("ipc://*", r"ipc:///.*/socket"),
        ("ipc://@sluicemq-NEW", r"ipc://@sluicemq-\w+"),
        ("ipc://jobs", r"ipc:///.*/jobs"),
    ],
)
def test_a_door_is_where_it_says_it_is(
    board: Switchboard,
    started: Started,
    clients: Clients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    real: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "[" in wanted and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    streamer = started(Streamer(board, parse_endpoint(wanted.replace("NEW", token_hex(8))), ANY_PORT))
    front, back = streamer.addresses
    assert re.fullmatch(real, front)
    push, pull = clients.connect(zmq.PUSH, front, ipv6=1), clients.connect(zmq.PULL, back)
    send(push, b"job")
    assert receive(pull) == [b"job"]
    if wanted == "tcp://[::]:*":
        four = clients.connect(zmq.PUSH, f"tcp://127.0.0.1:{host_and_port(front)[1]}")
        send(four, b"IPv4")
        assert receive(pull) == [b"IPv4"]
    # And afterwards nothing is left of it
    streamer.stop()
    assert list(tmp_path.iterdir()) == []
    if wanted == "ipc://*":
        assert not Path(front.removeprefix("ipc://")).parent.exists()


def test_folders_that_killed_processes_have_left_for_temporary_files_are_removed(tmp_path: Path) -> None:
    # Given: somebody listens in one, and another is about to
    places = [tmp_path / f"sluicemq-{name}" / "socket" for name in ("alive", "old", "young")]
    with contextlib.ExitStack() as stack:
        for place in places:
            place.parent.mkdir()
            listener = stack.enter_context(names.socket(names.AF_UNIX))
            listener.bind(str(place))
            if "alive" in str(place):
                listener.listen()
            if "young" not in str(place):
                os.utime(place, (1, 1))
        remove_left_over(tmp_path)
    assert [place.exists() for place in places] == [True, False, True]
    assert not places[1].parent.exists()


def test_an_interface_that_is_not_there_is_taken_for_a_host_name(board: Switchboard) -> None:
    streamer = Streamer(board, parse_endpoint("tcp://no-such-interface.invalid:*"), ANY_PORT)
    with pytest.raises(OSError, match=r"tcp://no-such-interface.invalid:\* can't be bound"):
        streamer.start()


def test_an_abstract_door_is_connected_to(board: Switchboard, started: Started, clients: Clients) -> None:
    name = f"ipc://@sluicemq-{token_hex(8)}"
    pull = clients.context.socket(zmq.PULL)
    pull.bind(name)
    streamer = started(Streamer(board, ANY_PORT, Endpoint(name, bind=False)))
    push = clients.connect(zmq.PUSH, streamer.addresses[0])
    send(push, b"job")
    assert receive(pull) == [b"job"]
    pull.close()


@pytest.mark.parametrize("wanted", ["[::1]", "[0::1]", "lo:0;[::1]", "[::1]:*;[::1]", "*:0;[::1]"])
def test_an_ipv6_address_is_dialled(board: Switchboard, started: Started, wanted: str) -> None:
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    listener, there = listen("tcp://[::1]:0")
    began = gevent.spawn(listener.accept)
    endpoint = parse_endpoint(f">tcp://{wanted}:{host_and_port(there)[1]}")
    started(RawDoor(board, endpoint, "PULL", lambda lane: None, max_frame=1000))
    accepted, place = began.get(timeout=60)
    accepted.close()
    listener.close()
    assert place[0] == "::1"


def test_an_address_of_a_link_goes_with_its_zone(board: Switchboard, started: Started) -> None:
    rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    found = [(row[0], row[-1]) for row in rows if row[3] == "20"]
    if not found:
        pytest.skip("this machine has no address of a link")
    digits, interface = found[0]
    host = f"[{names.inet_ntop(names.AF_INET6, bytes.fromhex(digits))}%{interface}]"
    listener, there = listen(f"tcp://{host}:0")
    assert there.startswith(f"tcp://{host}:")
    began = gevent.spawn(listener.accept)
    started(RawDoor(board, parse_endpoint(f">{there}"), "PULL", lambda lane: None, max_frame=1000))
    began.get(timeout=60)[0].close()
    listener.close()


_BOTH = """
import gevent
from sluicemq_devices.sockets.endpoints import host_and_port
from sluicemq_devices.sockets.resolving import connect, listen
bound, address = listen("tcp://both:0")
assert (bound.getsockname()[0], host_and_port(address)[0]) == ("127.0.0.1", "both"), address
for host in ("[::1]", "127.0.0.1"):
    listener, there = listen(f"tcp://{host}:0")
    for source in ("", "lo:0;", "*:0;"):
        began = gevent.spawn(listener.accept)
        connect(f"tcp://{source}both:{host_and_port(there)[1]}")
        began.get(timeout=60)
"""


def test_a_name_of_both_families_listens_at_its_ipv4_address_for_either(tmp_path: Path) -> None:
    """PUSH and REQ take a name's IPv4 address unless they are told otherwise."""
    hosts = tmp_path / "hosts"
    hosts.write_text("::1 localhost both\n127.0.0.1 localhost both\n")
    own = ["unshare", "-rm", "sh", "-c"]
    mount = f"mount --bind {hosts} /etc/hosts"
    if not shutil.which("unshare") or subprocess.run([*own, mount], check=False).returncode:
        pytest.skip("this machine lets no test have a file of hosts of its own")
    words = [*own, f"{mount} && exec {sys.executable} -c '{_BOTH}'"]
    assert subprocess.run(words, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("source", ["127.0.0.2:0", "127.0.0.3:*", "lo:0", "*:0", "127.0.0.4:{port}"])
def test_a_connection_comes_from_where_it_shall(board: Switchboard, started: Started, source: str) -> None:
    listener, there = listen("tcp://127.0.0.1:0")
    free, port_of_it = listen("tcp://127.0.0.1:0")
    free.close()
    came_from, port = source.format(port=host_and_port(port_of_it)[1]).split(":")
    wanted = f">tcp://{came_from}:{port};{there.removeprefix('tcp://')}"
    began = gevent.spawn(listener.accept)
    started(RawDoor(board, parse_endpoint(wanted), "PULL", lambda lane: None, max_frame=1000))
    accepted, place = began.get(timeout=60)
    accepted.close()
    listener.close()
    assert place[0] == {"lo": "127.0.0.1", "*": "127.0.0.1"}.get(came_from, came_from)
    assert port in ("0", "*", str(place[1]))


def test_two_doors_anywhere_are_two_doors(board: Switchboard, started: Started) -> None:
    first, second = (
        started(Streamer(board, parse_endpoint("ipc://*"), parse_endpoint("tcp://lo:*"))) for _ in range(2)
    )
    assert len({*first.addresses, *second.addresses}) == 4
    for door in (first, second):
        path = Path(door.addresses[0].removeprefix("ipc://"))
        assert path.parent.stat().st_mode & 0o077 == 0  # nobody else's
        assert path.parent.stat().st_uid == os.getuid()
        shake_hands(door.addresses[1], b"PULL").close()
    eventually(lambda: not first.workers.connections)


def _has_ipv6() -> bool:
    try:
        with sockets.socket(sockets.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
