"""Where library and commands connect to: one variable, one endpoint, refusals that name what is wrong."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sluicemq import Client, Producer, Worker
from sluicemq.cli.app import app
from sluicemq.transport import endpoints
from stub_broker import StubBroker


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLUICEMQ_ENDPOINT", "SLUICEMQ_BROKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("tcp://127.0.0.1:5550", "tcp://host-1.example:1", "tcp://[::1]:5550", "tcp://eth0:0;host:5550"),
        *("ipc:///run/jobs,1", "ipc://jobs", "ipc://@abstract"),
    ],
)
def test_an_endpoint_of_one_broker_is_taken_as_it_is(endpoint: str) -> None:
    assert endpoints.chosen(endpoint) == endpoint


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("tcp://a:1,tcp://b:2", "'tcp://a:1,tcp://b:2' is no .*: it is a list; .* name one"),
        ("tcp://a:1 tcp://b:2", "it is a list"),
        ("tcp://a:1,b:2", "it is a list"),
        ("ipc://a,ipc://b", "it is a list"),
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
        ("ipc://", "the path is missing"),
        ("ipc://*", "the path is missing"),
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
    for make in (Client, Producer, lambda where: Worker(where, "q", print)):
        with pytest.raises(ValueError, match="is no endpoint to connect to"):
            make(endpoint)


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
    ],
)
def test_the_variable_may_say_it_as_the_broker_needs_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, endpoint: str
) -> None:
    monkeypatch.setenv("SLUICEMQ_ENDPOINT", variable)
    assert endpoints.chosen(None) == endpoint


def test_library_and_commands_read_the_same_variable(
    monkeypatch: pytest.MonkeyPatch, broker: StubBroker
) -> None:
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
    assert endpoints.chosen("tcp://b:2") == "tcp://b:2"
