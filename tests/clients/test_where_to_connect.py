"""Where library and commands connect to: one variable, endpoints, refusals that name what is wrong."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from click.testing import CliRunner

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import Client, Producer, Worker
from sluicemq.cli.app import app
from sluicemq.transport import endpoints
from sluicemq.transport.access import Access


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLUICEMQ_ENDPOINT", "SLUICEMQ_BROKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("tcp://127.0.0.1:5550", "tcp://host-1.example:1", "tcp://[::1]:5550", "tcp://eth0:0;host:5550"),
        *("tcp://[fe80::1%eth0]:5550", "tcp://127.0.0.2:*;127.0.0.1:5550", "tcp://h_1.example.:5550"),
        *("ipc:///run/jobs,1", "ipc://jobs", "ipc://@abstract", "dns+tcp://brokers.example:5550"),
    ],
)
def test_an_endpoint_of_one_broker_is_taken_as_it_is(endpoint: str) -> None:
    assert endpoints.chosen(endpoint) == (endpoint,)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("tcp://a:1,tcp://b:2", ("tcp://a:1", "tcp://b:2")),
        ("tcp://a:1 , dns+tcp://b:2,ipc:///run/x,1", ("tcp://a:1", "dns+tcp://b:2", "ipc:///run/x,1")),
        (["tcp://a:1", "tcp://b:2,tcp://c:3"], ("tcp://a:1", "tcp://b:2", "tcp://c:3")),
        (("ipc://a,ipc://b",), ("ipc://a", "ipc://b")),
        (("tcp://a:1", "tcp://a:1"), ("tcp://a:1",)),
    ],
)
def test_several_endpoints_are_a_text_or_a_list(given: str | list[str], found: tuple[str, ...]) -> None:
    access = Access.chosen(given)
    assert access.endpoints == found
    assert Access.chosen(access.endpoint) == access


def test_a_list_of_endpoints_has_texts_and_an_end() -> None:
    unfit: Any = b"tcp://a:1"
    with pytest.raises(TypeError, match="endpoint is a str or a list of str, not bytes"):
        Access.chosen(unfit)
    with pytest.raises(TypeError, match="endpoint is a str, not bytes"):
        Access.chosen([unfit])
    with pytest.raises(ValueError, match="the list of endpoints is empty"):
        Access.chosen([])
    endless = (f"tcp://a:{port}" for port in itertools.count(1))
    with pytest.raises(ValueError, match="more than 1000 endpoints"):
        Access.chosen(endless)


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("tcp://a:1 tcp://b:2", "'tcp://a:1 tcp://b:2' is no .*: between the endpoints of a list is a comma"),
        ("tcp://a:1,b:2", "between the endpoints of a list is a comma, and each has its tcp://"),
        ("tcp://a:1,tcp://b", "'tcp://b' is no endpoint .* the host or the port is missing"),
        ("tcp://a:1,,tcp://b:2", "is no endpoint"),
        ("dns+tcp://a", "the host or the port is missing"),
        ("dns+tcp://a:0", "'0' is no port"),
        ("dns+tcp://eth0:0;a:1", "takes no address to connect from"),
        ("tcp://a:99999", "'99999' is no port from 1 to 65535"),
        ("tcp://a:0", "'0' is no port"),
        ("tcp://a:*", r"'\*' is no port"),
        ("tcp://a:", "'' is no port"),
        ("tcp://a:55 50", "'55 50' is no port"),
        ("tcp://a:5550/", "'5550/' is no port"),
        ("tcp://a", "the host or the port is missing"),
        ("tcp://:5550", "the host or the port is missing"),
        ("tcp://*:5550", "the host or the port is missing"),
        ("tcp://::1:5550", "an IPv6 host needs brackets"),
        ("tcp://[::1:5550", "an IPv6 host needs brackets"),
        ("tcp://[::1%lo]:5550", "is no IPv6 address"),
        ("tcp://[::x]:5550", "is no IPv6 address"),
        ("tcp://[127.0.0.1]:5550", "is no IPv6 address"),
        ("tcp://127.0.0.256:5550", "'127.0.0.256' is no IPv4 address"),
        ("tcp://a..b:5550", "'a..b' is no host"),
        ("tcp://bücher.example:5550", "letters and digits of ASCII"),
        ("tcp://-a:5550", "is no host"),
        ("tcp://a b:5550", "is no host"),
        (f"tcp://{'a' * 64}:5550", "is no host"),
        ("tcp://eth0;host:5550", "'eth0' is no address to connect from"),
        ("tcp://*:*;host:5550", "leave out what is before the semicolon"),
        ("tcp://127.0.0.2:0;[::1]:5550", "one family, IPv4 or IPv6, to the other"),
        ("ipc://", "the path is missing"),
        ("ipc://*", "the path is missing"),
        ("ipc://@", "the path is missing"),
        ("ipc:///" + "x" * 107, "longer than 107 bytes"),
        ("localhost:5550", "write tcp://HOST:PORT"),
        ("mongodb://bob:s3cret@h", "^this is no endpoint to connect to: write tcp://"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_named(endpoint: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        endpoints.chosen(endpoint)
    assert "s3cret" not in str(caught.value)
    result = CliRunner().invoke(app, ["--endpoint", endpoint, "ping"])
    assert result.exit_code == 2
    assert str(caught.value) in result.stderr
    makers: list[Callable[[], object]] = [
        lambda: Client(endpoint=endpoint),
        lambda: Producer(endpoint=endpoint),
        lambda: Worker("q", print, endpoint=endpoint),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="is no endpoint to connect to"):
            make()


def test_a_path_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        endpoints.chosen("ipc:///\udcff")
    result = CliRunner().invoke(app, ["--endpoint", "ipc:///\udcff", "ping"])
    assert (result.exit_code, "UTF-8" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("variable", "endpoint"),
    [
        ("tcp://there:7", "tcp://there:7"),
        ("@tcp://127.0.0.1:5550", "tcp://127.0.0.1:5550"),
        ("@tcp://*:7", "tcp://127.0.0.1:7"),
        ("tcp://0.0.0.0:7", "tcp://127.0.0.1:7"),
        ("@tcp://[::]:7", "tcp://[::1]:7"),
        ("@ipc:///run/jobs", "ipc:///run/jobs"),
        ("", "tcp://127.0.0.1:5550"),
        ("@tcp://*:7,tcp://b:8", "tcp://127.0.0.1:7,tcp://b:8"),
    ],
)
def test_it_may_be_in_the_brokers_form(monkeypatch: pytest.MonkeyPatch, variable: str, endpoint: str) -> None:
    monkeypatch.setenv("SLUICEMQ_ENDPOINT", variable)
    assert Access.chosen(None).endpoint == endpoint


def test_library_and_commands_read_it_alike(monkeypatch: pytest.MonkeyPatch, broker: ScriptedBroker) -> None:
    monkeypatch.setenv("SLUICEMQ_ENDPOINT", f"@{broker.endpoint}")
    with Client() as client, Producer() as producer:
        client.ping()
        producer.push("q", b"x").wait(60)
    assert f"{broker.endpoint} answers in" in CliRunner().invoke(app, ["ping"]).stdout
    other = CliRunner().invoke(app, ["--endpoint", "tcp://127.0.0.1:1", "ping"])
    assert other.exit_code == 3  # what is given by hand wins


def test_a_wrong_variable_and_its_former_name_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEMQ_ENDPOINT", "tcp://a:x")
    with pytest.raises(
        ValueError, match=r"^SLUICEMQ_ENDPOINT: 'tcp://a:x' is no endpoint .*: 'x' is no port"
    ):
        Client()
    result = CliRunner().invoke(app, ["ping"])
    assert (result.exit_code, "SLUICEMQ_ENDPOINT: 'tcp://a:x'" in result.stderr) == (2, True)
    monkeypatch.setenv("SLUICEMQ_BROKER", "tcp://a:1")
    with pytest.raises(ValueError, match="SLUICEMQ_BROKER is called SLUICEMQ_ENDPOINT now"):
        Client()
    assert endpoints.chosen("tcp://b:2") == ("tcp://b:2",)


@pytest.mark.parametrize(
    "form",
    [
        *("tcp://127.0.0.1:{port}", "tcp://localhost:{port}", "tcp://127.0.0.2:0;127.0.0.1:{port}"),
        *("tcp://lo:0;127.0.0.1:{port}", "tcp://lo:{port}", "tcp://lo:0;lo:{port}"),
    ],
)
def test_a_broker_at_an_ipv4_address_is_reached(broker: ScriptedBroker, form: str) -> None:
    _reach(form.format(port=broker.port))


@pytest.mark.parametrize(
    "form", ["tcp://[::1]:{port}", "tcp://[0:0:0:0:0:0:0:1]:{port}", "tcp://[::1]:0;[::1]:{port}"]
)
def test_a_broker_at_an_ipv6_address_is_reached(form: str) -> None:
    broker = ScriptedBroker(host="[::1]").start()
    try:
        _reach(form.format(port=broker.port))
    finally:
        broker.stop()


@pytest.mark.parametrize("form", ["ipc://{folder}/door", "ipc://door", "ipc://@sluicemq-{name}"])
def test_a_broker_at_a_unix_socket_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    broker = ScriptedBroker(host=form.format(folder=tmp_path, name=token_hex(8))).start()
    try:
        _reach(broker.endpoint)
    finally:
        broker.stop()


def test_an_interface_means_its_address(monkeypatch: pytest.MonkeyPatch, broker: ScriptedBroker) -> None:
    monkeypatch.setenv("SLUICEMQ_ENDPOINT", f"@tcp://lo:{broker.port}")
    with Client() as client:
        client.ping()


_BY_NAME = """
import json, sys
from sluicemq import Client, Unavailable
from clients.scripted_broker import ScriptedBroker

told = {}
for host in ("127.0.0.1", "[::1]"):
    broker = ScriptedBroker(host=host).start()
    for name in ("both", "six"):
        try:
            with Client(f"tcp://{name}:{broker.port}", patient=name == "both") as client:
                client.ping()
                told[f"{name} at {host}"] = True
        except Unavailable as error:
            told[f"{name} at {host}"] = str(error)
    broker.stop()
print(json.dumps(told))
"""


def test_a_name_is_tried_at_its_addresses_of_both_families(tmp_path: Path) -> None:
    """The names are those of a file of hosts that this process alone sees."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost both\n::1 localhost both six\n")
    if not _can_have_hosts_of_its_own(hosts):
        pytest.skip("this machine lets no test have a file of hosts of its own")
    script = f"mount --bind {hosts} /etc/hosts && exec {sys.executable} -c '{_BY_NAME}'"
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("six at 127.0.0.1").startswith("no broker answers at tcp://six:")
    assert found == dict.fromkeys(("both at 127.0.0.1", "both at [::1]", "six at [::1]"), True)


def test_nobody_at_any_address_of_a_name_is_told_at_once() -> None:
    result = CliRunner().invoke(app, ["--endpoint", "tcp://no-such-host.invalid:1", "ping"])
    said = "no broker answers at tcp://no-such-host.invalid:1: the name has no address"
    assert (result.exit_code, said in result.stderr) == (3, True)


def _reach(endpoint: str) -> None:
    """By the library and by a command."""
    with Client(endpoint=endpoint) as client, Producer(endpoint=endpoint) as producer:
        client.ping()
        producer.push("q", b"x").wait(SECONDS)
    assert f"{endpoint} answers in" in CliRunner().invoke(app, ["--endpoint", endpoint, "ping"]).stdout


def _can_have_hosts_of_its_own(hosts: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "mount", "--bind", str(hosts), "/etc/hosts"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
