"""A MongoDB of the test's own that takes TLS only, with certificates of clients, passwords and X.509."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pymongo import MongoClient

from sluicemq_broker.embedded import mongod
from support.certificates import Authority, Certificate
from support.ports import free_port
from support.waiting import wait_until

#: A user that may do everything, known by a password.
USER, PASSWORD = "root", "swordfish-of-mongodb"


class TlsMongoDB(NamedTuple):
    """Where it is, its authority, and the certificate of a client that X.509 knows."""

    port: int
    authority: Authority
    client: Certificate

    def uri(self, *options: str, host: str = "localhost", user: str = "") -> str:
        """Return a URI with these options, and no others."""
        words = "&".join(("directConnection=true", *options))
        return f"mongodb://{user}{host}:{self.port}/?{words}"

    @property
    def tls(self) -> str:
        """The options of a client that it lets speak."""
        return f"tls=true&tlsCAFile={self.authority.file}&tlsCertificateKeyFile={self.client.both}"

    @property
    def x509(self) -> str:
        """The URI of the user that is known by its certificate."""
        return self.uri(self.tls, "authMechanism=MONGODB-X509")

    @property
    def with_password(self) -> str:
        """The URI of the user that is known by its password."""
        return self.uri(self.tls, user=f"{USER}:{PASSWORD}@")


@contextmanager
def tls_mongodb(
    folder: Path, database: str, *, host: str = "localhost", days: float = 30.0
) -> Iterator[TlsMongoDB]:
    """A replica set of one node; its certificate is for ``host`` and valid for so many days.

    The user of X.509 may read and write ``database``, and see the state of the replica set.
    """
    authority = Authority(folder)
    server = authority.certificate("localhost", name="server", unit="mongod")
    client = authority.certificate("client.invalid", name="client", unit="brokers")
    made = TlsMongoDB(free_port(), authority, client)
    (folder / "db").mkdir()
    options = [
        *("--dbpath", folder / "db", "--port", made.port, "--bind_ip", "127.0.0.1", "--nounixsocket"),
        *("--replSet", "rs0", "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "200", "--quiet"),
        *("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server.both, "--tlsCAFile", authority.file),
        *("--clusterAuthMode", "x509", "--auth", "--logpath", folder / "mongod.log"),
        *("--setParameter", "authenticationMechanisms=MONGODB-X509,SCRAM-SHA-256,SCRAM-SHA-1"),
    ]
    process = mongod.launch(list(map(str, (mongod.find_mongod(), *options))), folder / "out.log")
    try:
        _initiate(made, database)
        yield made
    finally:
        process.kill()
        process.wait(60)


def _initiate(made: TlsMongoDB, database: str) -> None:
    """Make the replica set and the users, as one may once over loopback."""
    with MongoClient[dict[str, Any]](made.uri(made.tls), serverSelectionTimeoutMS=60_000) as client:
        members = [{"_id": 0, "host": f"localhost:{made.port}"}]
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], what="a primary")
        client.admin.command("createUser", USER, pwd=PASSWORD, roles=["root", "__system"])
    with MongoClient[dict[str, Any]](made.uri(made.tls, user=f"{USER}:{PASSWORD}@")) as client:
        roles = [{"role": "readWrite", "db": database}, {"role": "clusterMonitor", "db": "admin"}]
        client["$external"].command("createUser", made.client.subject, roles=roles)
