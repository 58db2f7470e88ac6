"""Keys and passwords at a running broker: who gets in, at which brokers, and when their connections end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import zmq
from zmq.utils.monitor import recv_monitor_message

from faults.mongo_proxy import CuttingProxy
from sluicemq.protocol import wire
from sluicemq.protocol.keys import KeyPair, encode, read_key, write_key_file
from sluicemq_broker.command import users
from support.broker_process import BrokerProcess
from support.raw_sockets import Smq
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(read_key(public.decode()), read_key(secret.decode()))


SERVER, OTHER_SERVER, OPERATOR, MAILER, SPARE, STRANGER = (new_pair() for _ in range(6))


class Client:
    """A client of a broker's library door, with a key, a user and password, or neither."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, **options: Any) -> None:
        self.plain = context.socket(zmq.DEALER)
        self.plain.linger = 0
        for name, value in options.items():
            setattr(self.plain, name, value)
        events = REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self.plain.get_monitor_socket(events)
        self.plain.connect(endpoint)

    def got_in(self) -> bool:
        """Whether the next handshake ends well."""
        return bool(self._next() == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def await_end(self) -> None:
        while self._next() != zmq.EVENT_DISCONNECTED:
            pass

    @property
    def has_ended(self) -> bool:
        """Whether something happened to the connection that it has."""
        return bool(self._monitor.poll(0))

    @property
    def is_connected(self) -> bool:
        """Whether it is answered over the connection that it has."""
        assert Smq(self.plain).ask(wire.PING).verb in (wire.OK, wire.ERROR)
        return not self.has_ended

    def users(self, action: str, **fields: Any) -> Any:
        """The answer to USERS; the code of an error."""
        answer = self._smq.ask(wire.USERS, action, fields)
        return answer.fields[0]

    def push(self, queue: str, payload: bytes) -> None:
        assert self._smq.ask(wire.PUSH, queue, [[None, payload, None]]).verb == wire.OK

    def hello(self) -> Client:
        assert self.got_in()
        self._smq = Smq(self.plain)
        assert self._smq.ask(wire.HELLO, {"client": "test"}).verb == wire.OK
        return self

    def _next(self) -> int:
        assert self._monitor.poll(TIMEOUT * 1000), "nothing happens"
        return int(recv_monitor_message(self._monitor)["event"])


Clients = Callable[..., Client]


@pytest.fixture
def client() -> Iterator[Clients]:
    """Make clients."""
    context: zmq.Context[Any] = zmq.Context()
    made: list[Client] = []

    def make(broker: BrokerProcess, at: str = "smq", **options: Any) -> Client:
        made.append(Client(context, broker.doors.get(at, at), **options))
        return made[-1]

    yield make
    for peer in made:
        peer.plain.disable_monitor()
    context.destroy(linger=0)


def keyed(pair: KeyPair, server: KeyPair = SERVER) -> dict[str, Any]:
    """Options of a socket that shows this key."""
    keys = {"publickey": pair.public, "secretkey": pair.secret, "serverkey": server.public}
    return {f"curve_{name}": encode(key).encode() for name, key in keys.items()}


def named(user: str, password: str) -> dict[str, Any]:
    return {"plain_username": user.encode(), "plain_password": password.encode()}


def secured(folder: Path, **settings: Any) -> dict[str, Any]:
    """A configuration with keys, and an operator in the file."""
    file = folder / "broker.key"
    if not file.exists():
        write_key_file(file, SERVER)
    operator = {"keys": [encode(OPERATOR.public)], "permissions": "operate"}
    own = {
        "mechanism": ["curve", "plain"],
        "secret_key_file": str(file),
        "principals": {"operator": operator},
    }
    return {"security": {**own, **settings}, "broker": {"poll": 0.2, "silence": 300}}


def address(plain: zmq.Socket[bytes]) -> str:
    return bytes(plain.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


class Reloaded(BrokerProcess):
    """A broker whose file is written anew while it runs."""

    def reload(self, config: dict[str, Any], *, refused: bool = False) -> None:
        said = ", the former one stays" if refused else "SIGHUP: read "
        known = self.log_text().count(said)
        (self.folder / "broker.toml").write_text(tomli_w.dumps({**self.config, **config}))
        self.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log_text().count(said) > known, what="the new configuration")


@pytest.mark.parametrize(
    "bus", [{"event_bus": "auto", "poll": 600.0}, {"event_bus": "off", "poll": 0.2}], ids=str
)
def test_a_key_is_added_and_revoked_at_one_broker_for_all(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients, bus: dict[str, Any]
) -> None:
    config = {**secured(tmp_path), "broker": bus}
    with ExitStack() as stack:
        brokers = [stack.enter_context(BrokerProcess(mongo_uri, database, config=config)) for _ in "12"]
        operator = client(brokers[0], **keyed(OPERATOR)).hello()
        row = operator.users("add", name="mailer", key=encode(MAILER.public), permissions="push=mail")
        operator.users("rotate", name="mailer", kind="curve", key=encode(SPARE.public))
        other_operator = client(brokers[1], **keyed(OPERATOR)).hello()
        wait_until(
            lambda: (
                [len(user["keys"]) for user in other_operator.users("list") if user["name"] == "mailer"]
                == [2]
            ),
            what="both keys at the other broker",
        )
        stolen = [client(broker, **keyed(MAILER)).hello() for broker in brokers]
        spare = [client(broker, **keyed(SPARE)).hello() for broker in brokers]

        operator.users("rotate", name="mailer", id=row["keys"][0]["id"])

        for peer in stolen:
            peer.await_end()
            assert not peer.got_in()
        assert all(peer.is_connected for peer in spare)
        other_operator.users("remove", name="mailer")
        for peer in spare:
            peer.await_end()
            assert not peer.got_in()
        assert "its key, or its principal, was removed" in brokers[1].log_text()


def test_strangers_are_named_by_key(mongo_uri: str, database: str, tmp_path: Path, client: Clients) -> None:
    with BrokerProcess(mongo_uri, database, config=secured(tmp_path)) as broker:
        assert not client(broker, **keyed(STRANGER)).got_in()
        assert not client(broker, **keyed(OPERATOR, OTHER_SERVER)).got_in()
        assert client(broker, **keyed(OPERATOR)).got_in()
        wait_until(
            lambda: f"no principal has its key {encode(STRANGER.public)}" in broker.log_text(),
            what="the key in the log",
        )


def test_a_user_gets_in_with_the_password_until_it_is_another(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients
) -> None:
    with BrokerProcess(mongo_uri, database, config=secured(tmp_path)) as broker:
        operator = client(broker, **keyed(OPERATOR)).hello()
        operator.users("add", name="mailer", password="correct horse", permissions="push=mail")  # noqa: S106
        user = client(broker, **named("mailer", "correct horse")).hello()
        assert not client(broker, **named("mailer", "battery staple")).got_in()
        assert not client(broker, **named("nobody", "correct horse")).got_in()
        assert user.users("list") == "FORBIDDEN"
        operator.users("rotate", name="mailer", kind="password", password="battery staple")  # noqa: S106
        user.await_end()
        assert not user.got_in()
        assert client(broker, **named("mailer", "battery staple")).got_in()
        assert "correct horse" not in broker.log_text()
        assert "battery staple" not in broker.log_text()


def test_the_last_operator_stays(mongo_uri: str, database: str, tmp_path: Path, client: Clients) -> None:
    users.act(
        mongo_uri,
        database,
        "add",
        {"name": "owner", "key": encode(OPERATOR.public), "permissions": "operate"},
    )
    with BrokerProcess(mongo_uri, database, config=secured(tmp_path, principals={})) as broker:
        owner = client(broker, **keyed(OPERATOR)).hello()

        for action, fields in (("remove", {}), ("permit", {"permissions": "push"})):
            assert owner.users(action, name="owner", **fields) == "FORBIDDEN"
        key = owner.users("show", name="owner")["keys"][0]["id"]
        assert owner.users("rotate", name="owner", id=key) == "FORBIDDEN"

        owner.users("permit", name="owner", permissions="push", force=True)
        assert owner.users("list") == "FORBIDDEN"
        users.act(mongo_uri, database, "permit", {"name": "owner", "permissions": "operate"})
        wait_until(lambda: owner.users("list") != "FORBIDDEN", what="the permission from the store")


def test_known_keys_need_no_mongodb(mongo_uri: str, database: str, tmp_path: Path, client: Clients) -> None:
    users.act(mongo_uri, database, "add", {"name": "m", "key": encode(MAILER.public), "permissions": "all"})
    with (
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, database, config=secured(tmp_path)) as broker,
    ):
        away = proxy.hold(lambda command: command.collection == "principals")
        assert away.wait()
        assert client(broker, **keyed(MAILER)).got_in()
        assert not client(broker, **keyed(STRANGER)).got_in()


def test_sighup_takes_principals(mongo_uri: str, database: str, tmp_path: Path, client: Clients) -> None:
    config = secured(tmp_path)
    mailer = {"keys": [encode(MAILER.public)], "permissions": "push=mail"}
    operator = config["security"]["principals"]["operator"]
    with Reloaded(mongo_uri, database, config=config, folder=tmp_path) as broker:
        old = client(broker, **keyed(OPERATOR)).hello()
        assert not client(broker, **keyed(MAILER)).got_in()

        broker.reload(secured(tmp_path, principals={"operator": operator, "mailer": mailer}))
        assert client(broker, **keyed(MAILER)).got_in()
        (tmp_path / "broker.key").unlink()
        write_key_file(tmp_path / "broker.key", OTHER_SERVER)
        broker.reload(secured(tmp_path, principals={"operator": operator}))

        assert old.is_connected
        assert not client(broker, **keyed(OPERATOR)).got_in()
        assert client(broker, **keyed(OPERATOR, OTHER_SERVER)).got_in()
        assert not client(broker, **keyed(MAILER, OTHER_SERVER)).got_in()
        assert encode(OTHER_SERVER.public) in broker.log_text()
        for secret in (SERVER, OTHER_SERVER, OPERATOR, MAILER):
            assert encode(secret.secret) not in broker.log_text()


def test_connections_of_anonymous_clients_end_when_they_may_do_nothing_any_more(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients
) -> None:
    settings = {"mechanism": ["null", "curve"]}
    with Reloaded(
        mongo_uri, database, config=secured(tmp_path, anonymous="read", **settings), folder=tmp_path
    ) as broker:
        stranger, owner = client(broker).hello(), client(broker, **keyed(OPERATOR)).hello()
        broker.reload(secured(tmp_path, anonymous="none", **settings))
        stranger.await_end()
        assert owner.is_connected


def test_sighup_takes_devices(mongo_uri: str, database: str, tmp_path: Path, client: Clients) -> None:
    door: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:*", "mechanism": ["null", "curve"]}
    door["anonymous"] = "push"
    ends = [dict(door), {**door, "endpoint": "ipc://*"}]
    device = {"kind": "queue", "queue": "mail", "frontend": ends}
    config = {**secured(tmp_path), "devices": [device]}
    config["security"]["principals"]["operator"]["permissions"] = "all"
    with Reloaded(mongo_uri, database, config=config, folder=tmp_path) as broker:
        closed, other = broker.devices[0]["frontend"]
        stranger, owner = client(broker, at=closed), client(broker, at=closed, **keyed(OPERATOR))
        elsewhere = client(broker, at=other)
        assert stranger.got_in()
        assert owner.got_in()
        assert elsewhere.got_in()

        ends[0]["anonymous"] = "none"
        broker.reload({"devices": [device]})
        stranger.await_end()
        stranger.await_end()  # with NULL it is cut behind its handshake
        assert client(broker, at=closed, **keyed(OPERATOR)).got_in()

        ends[0] |= {"mechanism": ["null"], "anonymous": "push"}
        broker.reload({"devices": [device]})
        owner.await_end()
        assert not owner.got_in()
        assert client(broker, at=closed).got_in()
        assert not elsewhere.has_ended


def test_sighup_takes_mechanisms_of_all_doors_and_those_without_keys_end(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients
) -> None:
    with Reloaded(mongo_uri, database, config={"broker": {"poll": 0.2}}, folder=tmp_path) as broker:
        stranger = client(broker).hello()
        broker.reload(secured(tmp_path))
        stranger.await_end()
        assert not client(broker).got_in()
        assert client(broker, **keyed(OPERATOR)).got_in()
        assert "SIGHUP: now [security] mechanism: " in broker.log_text()


def test_sighup_opens_no_door_to_other_machines_by_the_change_that_needs_a_restart(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients
) -> None:
    open_to_others = {"kind": "queue", "queue": "mail", "frontend": "tcp://*:*"}
    config = {**secured(tmp_path, mechanism=["curve"]), "devices": [open_to_others]}
    with Reloaded(mongo_uri, database, config=config, folder=tmp_path) as broker:
        here = {**open_to_others, "frontend": "tcp://127.0.0.1:*"}
        broker.reload(
            {**secured(tmp_path, mechanism=["curve"], anonymous="all"), "devices": [here]}, refused=True
        )
        broker.reload({"devices": [{**open_to_others, "anonymous": "push"}]}, refused=True)
        assert broker.log_text().count("SIGHUP: [[devices]] no. 1: other machines can reach ") == 2
        assert not client(broker).got_in()
        broker.reload({"devices": [{**open_to_others, "anonymous": "push", "insecure": True}]})


def test_a_door_that_connects_shows_the_brokers_key_and_knows_that_of_the_other_side(
    mongo_uri: str, database: str, tmp_path: Path, client: Clients
) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as worker, context.socket(zmq.REP) as impostor:
        for plain, pair in ((worker, MAILER), (impostor, STRANGER)):
            plain.linger, plain.curve_server, plain.rcvtimeo = 0, 1, int(TIMEOUT * 1000)
            plain.curve_secretkey = encode(pair.secret).encode()
            plain.bind("tcp://127.0.0.1:*")
        ends = [
            {"endpoint": f">{address(plain)}", "server_key": encode(MAILER.public)}
            for plain in (worker, impostor)
        ]
        device = {"kind": "queue", "queue": "mail", "backend": ends}
        config = {**secured(tmp_path), "devices": [device]}
        config["security"]["principals"]["operator"]["permissions"] = "all"
        with BrokerProcess(mongo_uri, database, config=config) as broker:
            producer = client(broker, **keyed(OPERATOR)).hello()
            producer.push("mail", b"job")

            assert worker.recv() == b"job"
            worker.send(b"")
            refusal = f"{address(impostor)}: it left within its handshake"
            wait_until(lambda: refusal in broker.log_text(), what="the refusal of the other server")
            assert not impostor.poll(0)
