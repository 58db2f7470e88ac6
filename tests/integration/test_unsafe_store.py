"""The way to MongoDB: unsafe stores, TLS and X.509, logins that change while a broker runs."""

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Producer, Worker
from sluicemq.protocol.errors import DuplicateError, UnavailableError
from sluicemq_broker.command.users import act
from sluicemq_broker.config import MongoUri
from sluicemq_broker.store import UnsafeStore, connect, connect_for_leases, require_safe, why_no_primary
from support.broker_process import BrokerProcess
from support.certificates import Authority, Certificate
from support.own_mongod import a_mongod
from support.ports import free_port
from support.tls_mongodb import PASSWORD, TlsMongoDB, tls_mongodb
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a plain mongod without a replica set."""
    with a_mongod(tmp_path_factory.mktemp("standalone")) as port:
        yield f"mongodb://127.0.0.1:{port}/"


def test_a_stand_alone_server_is_refused_with_what_to_do(standalone: str) -> None:
    with connect(standalone) as client, pytest.raises(UnsafeStore) as refusal:
        require_safe(client, allow_unsafe=False)
    for fact in ("stand-alone", "rs.initiate()", "--allow-unsafe-store"):
        assert fact in str(refusal.value)


def test_a_stand_alone_server_is_taken_with_a_warning_if_that_is_allowed(standalone: str) -> None:
    with connect(standalone) as client:
        warning = require_safe(client, allow_unsafe=True)
    assert "may be lost" in str(warning)


def test_a_replica_set_is_safe(mongo: MongoClient[dict[str, Any]]) -> None:
    assert require_safe(mongo, allow_unsafe=False) is None


class Settings:
    """A replica set whose administrator has switched the journal off for majority writes."""

    class admin:  # noqa: N801 - the driver's name
        @staticmethod
        def command(name: str) -> dict[str, Any]:
            config = {"writeConcernMajorityJournalDefault": False}
            answers: dict[str, dict[str, Any]] = {
                "hello": {"setName": "rs0"},
                "replSetGetConfig": {"config": config},
            }
            return answers[name]


def test_a_replica_set_whose_majority_is_not_journaled_is_refused() -> None:
    with pytest.raises(UnsafeStore, match="writeConcernMajorityJournalDefault"):
        require_safe(Settings(), allow_unsafe=False)  # type: ignore[arg-type]


def test_no_mongodb_at_all_is_unavailable_and_not_unsafe() -> None:
    uri = f"mongodb://127.0.0.1:{free_port()}/?serverSelectionTimeoutMS=100"
    with MongoClient[dict[str, Any]](uri) as client, pytest.raises(UnavailableError) as failure:
        require_safe(client, allow_unsafe=True)
    assert not isinstance(failure.value, UnsafeStore)


def test_a_broker_refuses_to_start_on_it(standalone: str, database: str, tmp_path: Path) -> None:
    broker = BrokerProcess(standalone, database, folder=tmp_path)
    try:
        broker.launch()
        code = broker.process.wait(60)
    finally:
        broker.close()
    assert code == 1
    assert "--allow-unsafe-store" in broker.log_text()
    assert "Traceback" not in broker.log_text()


def test_a_broker_starts_on_it_and_says_so_if_it_is_told_to(standalone: str, database: str) -> None:
    with BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker:
        wait_until(lambda: "confirmed jobs may be lost" in broker.log_text(), what="the warning")
        assert broker.doors["smq"].startswith("tcp://127.0.0.1:")


def test_what_is_wrong_with_a_replica_set_is_named_with_its_cure(tmp_path: Path) -> None:
    with a_mongod(tmp_path, "--replSet", "rs0") as port:
        # Given one that nobody has initiated
        host = f"127.0.0.1:{port}"
        told = f"has not been initiated: do so once, at one of its members: mongosh --host {host}"
        assert told in str(why_no_primary(f"mongodb://bob:secret@{host}/?replicaSet=rs0"))
        with connect(f"mongodb://{host}/?directConnection=true") as client:
            with pytest.raises(UnsafeStore, match="its replica set has not been initiated"):
                require_safe(client, allow_unsafe=False)
            # When somebody does
            members = [{"_id": 0, "host": host}]
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], what="a primary")
            # Then a wrong name is told beside the right one
            told = f"the replica set of {host} is 'rs0', and the URI names 'other': write replicaSet=rs0"
            assert why_no_primary(f"mongodb://{host}/?replicaSet=other") == told
            # And members that nobody can reach from here
            config = client.admin.command("replSetGetConfig")["config"]
            config["members"][0]["host"] = f"localhost:{port}"
            config["version"] += 1
            client.admin.command("replSetReconfig", config, force=True)
            wait_until(lambda: client.admin.command("hello").get("isWritablePrimary"), what="a primary")
            told = f"but its replica set calls its members localhost:{port}, which this machine can't reach"
            assert told in str(why_no_primary(f"mongodb://{host}/?replicaSet=rs0"))


@pytest.mark.full
def test_a_member_that_has_just_started_does_not_hide_what_the_others_say(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    with (
        a_mongod(tmp_path / "new", "--replSet", "rs0") as new,
        a_mongod(tmp_path / "old", "--replSet", "rs0") as old,
    ):
        with connect(f"mongodb://127.0.0.1:{old}/?directConnection=true") as client:
            members = [{"_id": 0, "host": f"127.0.0.1:{old}"}]
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        told = why_no_primary(f"mongodb://127.0.0.1:{new},127.0.0.1:{old}/?replicaSet=other")
        assert told == (
            f"the replica set of 127.0.0.1:{old} is 'rs0', and the URI names 'other': write replicaSet=rs0"
        )


def test_a_broker_that_finds_no_primary_says_why(standalone: str, database: str, tmp_path: Path) -> None:
    uri = f"{standalone}?replicaSet=rs0"
    broker = BrokerProcess(uri, database, folder=tmp_path)
    try:
        broker.launch()
        assert broker.process.wait(60) == 1
    finally:
        broker.close()
    [error] = [line for line in broker.log_text().splitlines() if "ERROR" in line]
    assert "is a stand-alone server, no member of a replica set 'rs0': start it with --replSet rs0" in error


def test_where_nobody_answers_there_is_no_more_to_say() -> None:
    assert why_no_primary(f"mongodb://127.0.0.1:{free_port()}/?replicaSet=rs0") is None
    assert why_no_primary("mongodb+srv://bob:secret@db.invalid/") is None


@pytest.mark.full
def test_duplicates_are_told_on_it_too(standalone: str, database: str) -> None:
    with (
        BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        first = producer.push("mail", b"", dedupe_id="d")
        first.wait(60)  # of two that are on their way at once either may be stored first
        with pytest.raises(DuplicateError) as refusal:
            producer.push("mail", b"", dedupe_id="d").wait(60)
    assert refusal.value.id == first.id


DATABASE = "sluicemq_tls"


@pytest.fixture(scope="module")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMongoDB]:
    with tls_mongodb(tmp_path_factory.mktemp("tls"), DATABASE) as made:
        yield made


@pytest.mark.full
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


@pytest.mark.full
def test_both_kinds_of_connections_take_its_options(mongodb: TlsMongoDB) -> None:
    for client in (connect(mongodb.x509), connect_for_leases(mongodb.x509, 3.0)):
        with client:
            assert client[DATABASE]["test"].count_documents({}) == 0


@pytest.mark.full
def test_principals_are_changed_over_it_without_a_broker(mongodb: TlsMongoDB) -> None:
    act(mongodb.x509, DATABASE, "add", {"name": "me", "password": "a long password", "permissions": "all"})
    assert "me" in {row["name"] for row in act(mongodb.x509, DATABASE, "list", {})}


@pytest.mark.full
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


@pytest.mark.full
def test_a_mongodb_whose_certificate_has_expired_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_door(authority.certificate("localhost", days=-1)) as port:  # mongod does not start with it
        told = why_no_primary(f"mongodb://localhost:{port}/?tls=true&tlsCAFile={authority.file}")
    assert told == f"the certificate of localhost:{port} has expired: give that MongoDB a new one"


@pytest.mark.full
def test_tls_where_there_is_none_is_named(mongo_uri: str, tmp_path: Path) -> None:
    with CuttingProxy(mongo_uri) as proxy:
        host = proxy.uri.removeprefix("mongodb://").partition("/")[0]
        assert why_no_primary(f"mongodb://{host}/?tls=true") == (
            f"{host} speaks no TLS: leave tls=true out of the URI, or switch TLS on there (--tlsMode)"
        )


@pytest.mark.full
def test_a_broker_with_a_wrong_password_says_so(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    error = refusal(mongodb.uri(mongodb.tls, user="root:wrong-password@"), tmp_path)
    assert "MongoDB refuses user root of the URI (Authentication failed.): look at its password" in error
    assert "wrong-password" not in error


@pytest.mark.full
def test_a_broker_that_finds_no_file_says_which(mongodb: TlsMongoDB, tmp_path: Path) -> None:
    uri = mongodb.uri("tls=true", "tlsCAFile=/nowhere/ca.pem", user=f"root:{PASSWORD}@")
    error = refusal(uri, tmp_path)
    assert "option no. 3, tlsCAFile=/nowhere/ca.pem" in error
    assert PASSWORD not in error


@pytest.mark.full
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


LOGINS_DATABASE: Final = "logins"
USER: Final = "broker"
SECONDS: Final = 60.0


@pytest.fixture(scope="module")
def mongo_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMongoDB]:
    with tls_mongodb(tmp_path_factory.mktemp("mongo"), LOGINS_DATABASE) as made:
        yield made


@pytest.fixture
def users(mongo_with_users: TlsMongoDB) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_with_users.with_password) as client:
        make(client.admin, "first")
        yield client.admin
        client.admin.command("dropUser", USER)


def make(users: Database[dict[str, Any]], password: str) -> None:
    roles = [{"role": "readWrite", "db": LOGINS_DATABASE}, {"role": "clusterMonitor", "db": "admin"}]
    users.command("createUser", USER, pwd=password, roles=roles)


@pytest.mark.full
def test_a_user_that_is_dropped_and_made_again_is_logged_in_again_and_a_new_password_is_read_by_sighup(
    mongo_with_users: TlsMongoDB, users: Database[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "uri"
    file.touch(0o600)
    file.write_text(mongo_with_users.uri(mongo_with_users.tls, user=f"{USER}:first@"))
    config = {"broker": {"mongodb_uri_file": str(file), "database": LOGINS_DATABASE, "lease": 5.0}}
    with BrokerProcess(config=config) as broker, Producer(endpoint=broker.doors["smq"]) as producer:
        with Client(endpoint=broker.doors["smq"]) as client:
            producer.push("mail", b"before").wait(SECONDS)
            users.command("dropUser", USER)
            wait_until(lambda: client.health()["store"] != "ok", SECONDS, "no login")
            make(users, "first")
            producer.push("mail", b"made again").wait(SECONDS)
            wait_until(lambda: client.health()["store"] == "ok", SECONDS, "the login")
            users.command("dropUser", USER)
            wait_until(lambda: client.health()["store"] != "ok", SECONDS, "no login")
            make(users, "second")
            file.write_text(mongo_with_users.uri(mongo_with_users.tls, user=f"{USER}:second@"))
            broker.send_signal(signal.SIGHUP)
            broker.wait_log("SIGHUP: now [broker] mongodb_uri: another one")
            producer.push("mail", b"with another password").wait(SECONDS)
            wait_until(lambda: client.health()["store"] == "ok", SECONDS, "the login")
            assert len(client.peek("mail")) == 3
        assert "second" not in broker.log_text()


@pytest.mark.parametrize(
    ("before", "after", "is_only_login"),
    [
        ("mongodb://a:b@h/", "mongodb://a:c@h/", True),
        ("mongodb://a:b@h/?authSource=x", "mongodb://z:b@h/?authSource=y", True),
        ("mongodb://a:b@h/", "mongodb://a:b@h,i/", False),
        ("mongodb://a:b@h/", "mongodb://h/", False),
        ("mongodb://a:b@h/?tls=true", "mongodb://a:b@h/", False),
    ],
)
def test_a_running_broker_takes_another_login(before: str, after: str, *, is_only_login: bool) -> None:
    assert MongoUri.read(before).differs_in_login_only(MongoUri.read(after)) is is_only_login
