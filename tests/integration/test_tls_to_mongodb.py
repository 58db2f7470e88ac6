"""TLS and X.509 between the broker and its MongoDB; what is wrong with either is named."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Producer, Worker
from sluicemq_broker.command.users import act
from sluicemq_broker.store import connect, connect_for_leases, why_no_primary
from support.broker_process import BrokerProcess
from support.certificates import Authority, Certificate
from support.tls_mongodb import PASSWORD, TlsMongoDB, tls_mongodb
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

DATABASE = "sluicemq_tls"


@pytest.fixture(scope="module")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMongoDB]:
    with tls_mongodb(tmp_path_factory.mktemp("tls"), DATABASE) as made:
        yield made


@pytest.mark.parametrize("how", ["x509", "with_password"])
def test_two_brokers_work_over_it_and_hear_of_each_other_at_once(mongodb: TlsMongoDB, how: str) -> None:
    config = {"broker": {"poll": 60.0, "history": True}}  # so that only the bus can tell in time
    uri = getattr(mongodb, how)
    with (
        BrokerProcess(uri, DATABASE, config=config) as one,
        BrokerProcess(uri, DATABASE, config=config) as other,
        Producer(endpoint=one.doors["smq"]) as producer,
        Client(endpoint=other.doors["smq"]) as client,
        Worker(f"mail-{how}", lambda job: job.payload[::-1], endpoint=other.doors["smq"]),
    ):
        wait_until(lambda: heard(client) is not None, TIMEOUT, "the bus")
        assert producer.call(f"mail-{how}", b"abc", timeout=TIMEOUT) == b"cba"
        assert heard(client)


def heard(client: Client) -> int:
    return int(client.counters().counters.get("bus_heard", 0))


def test_both_kinds_of_connections_take_its_options(mongodb: TlsMongoDB) -> None:
    for client in (connect(mongodb.x509), connect_for_leases(mongodb.x509, 3.0)):
        with client:
            assert client[DATABASE]["test"].count_documents({}) == 0


def test_principals_are_changed_over_it_without_a_broker(mongodb: TlsMongoDB) -> None:
    act(mongodb.x509, DATABASE, "add", {"name": "me", "password": "a long password", "permissions": "all"})
    assert "me" in {row["name"] for row in act(mongodb.x509, DATABASE, "list", {})}


def test_each_kind_of_trouble_is_named(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    strange = Authority(tmp_path, "strange")
    stranger = strange.certificate("client.invalid", name="stranger")
    expired = mongodb.authority.certificate("client.invalid", name="expired", days=-1)
    trusted, own = f"tls=true&tlsCAFile={mongodb.authority.file}", "tlsCertificateKeyFile="
    said = {
        "no TLS": mongodb.uri(),
        "no authority": mongodb.uri("tls=true", f"{own}{mongodb.client.both}"),
        "another authority": mongodb.uri("tls=true", f"tlsCAFile={strange.file}"),
        "another name": mongodb.uri(mongodb.tls, host="127.0.0.1"),
        "no certificate": mongodb.uri(trusted),
        "one of a stranger": mongodb.uri(trusted, f"{own}{stranger.both}"),
        "an expired one": mongodb.uri(trusted, f"{own}{expired.both}"),
        "all right": mongodb.x509,
    }
    here = f"localhost:{mongodb.port}"

    told = {name: str(why_no_primary(uri)) for name, uri in said.items()}

    assert told["no TLS"].startswith(f"{here} takes TLS only: write tls=true into the URI")
    signed = f"the certificate of {here} is signed by no authority that this broker trusts"
    assert told["no authority"].startswith(signed)
    assert told["another authority"].startswith(signed)
    assert told["another name"].startswith(f"the certificate of 127.0.0.1:{mongodb.port} is for another name")
    assert told["no certificate"].startswith(
        f"{here} closes the connection after the TLS handshake: as a rule"
    )
    refused = (
        f"{here} closes the connection after the TLS handshake: it refuses the certificate of this broker"
    )
    assert told["one of a stranger"].startswith(f"{refused} in {stranger.both}: ")
    assert "issuer" in told["one of a stranger"]
    assert told["an expired one"] == f"{refused} in {expired.both}: certificate has expired"
    assert "TLS" not in told["all right"]


def test_a_mongodb_whose_certificate_has_expired_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_door(authority.certificate("localhost", days=-1)) as port:  # mongod does not start with it
        told = why_no_primary(f"mongodb://localhost:{port}/?tls=true&tlsCAFile={authority.file}")
    assert told == f"the certificate of localhost:{port} has expired: give that MongoDB a new one"


def test_tls_where_there_is_none_is_named(mongo_uri: str, tmp_path: Path) -> None:
    with CuttingProxy(mongo_uri) as proxy:
        host = proxy.uri.removeprefix("mongodb://").partition("/")[0]
        assert why_no_primary(f"mongodb://{host}/?tls=true") == (
            f"{host} speaks no TLS: leave tls=true out of the URI, or switch TLS on there (--tlsMode)"
        )


def test_a_broker_with_a_wrong_password_says_so(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    error = refusal(mongodb.uri(mongodb.tls, user="root:wrong-password@"), tmp_path)
    assert "MongoDB refuses user root of the URI (Authentication failed.): look at its password" in error
    assert "wrong-password" not in error


def test_a_broker_that_finds_no_file_says_which(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    uri = mongodb.uri("tls=true", "tlsCAFile=/nowhere/ca.pem", user=f"root:{PASSWORD}@")
    error = refusal(uri, tmp_path)
    assert "option no. 3, tlsCAFile=/nowhere/ca.pem" in error
    assert PASSWORD not in error


def test_a_broker_whose_host_name_is_wrong_says_so(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    assert "is for another name" in refusal(mongodb.x509.replace("localhost", "127.0.0.1"), tmp_path)


@contextmanager
def tls_door(certificate: Certificate) -> Iterator[int]:
    """A port where a TLS server shakes hands, and says nothing more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.both)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as connection, suppress(ssl.SSLError, ConnectionError):
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def refusal(uri: str, folder: Path) -> str:
    """What a broker says that does not start."""
    broker = BrokerProcess(uri, DATABASE, folder=folder)
    try:
        broker.launch()
        assert broker.process.wait(120) == 1
    finally:
        broker.close()
    return next(line for line in broker.log_text().splitlines() if "ERROR" in line)
