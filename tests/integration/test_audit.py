"""The audit at real brokers: what is recorded at each door, what is not, and how it is read."""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Any

import pytest
import tomli_w
import zmq
from click.testing import CliRunner, Result
from pymongo import MongoClient

from faults.test_every_verb_is_bounded import VERBS
from sluicemq import Client, NotAdmittedError, NotFoundError, Producer, Publisher
from sluicemq.cli.app import app
from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from sluicemq_broker.command import users
from sluicemq_broker.doors import ADMIN_VERBS
from sluicemq_broker.doors import VERBS as OF_SESSIONS
from sluicemq_broker.http import BASE as V1
from sluicemq_broker.parts import NEEDS
from sluicemq_broker.security import Needs
from support.broker_process import BrokerProcess
from support.cheap_passwords import cheap_hash
from support.http_reader import Web
from support.http_site import all_needs
from support.keyed_broker import KeyedBroker, keyed_broker, new_key
from support.raw_sockets import Smq
from support.waiting import TIMEOUT, wait_until

TOKEN = "token-of-the-owner-for-tests"  # noqa: S105 - of a broker of tests
WRONG = "a-wrong-token-for-tests"
PASSWORD = "correct horse battery"  # noqa: S105
SHORT = "hunter2-hunter2"
KEY = zmq.curve_keypair()[0].decode()
REFUSED = 400

Row = dict[str, Any]


#: One for each process that runs these tests: they count what is in it.
DATABASE = f"test_audit_{token_hex(4)}"


def config() -> dict[str, Any]:
    reader = {
        "tokens": [f"sha256:{hashlib.sha256(b'token-of-the-reader').hexdigest()}"],
        "permissions": "read",
    }
    return {
        "broker": {"http": "127.0.0.1:0", "http_token": TOKEN},
        "schedules": {"nightly": {"queue": "victim", "payload": "x", "every": 86400}},
        "queues": {name: {} for name in ("victim", "pages", "over-http", "shown")},
        "security": {
            "anonymous": "all",
            "principals": {
                "reader": reader,
                "owner": {"password": cheap_hash(PASSWORD), "permissions": "all"},
            },
        },
    }


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, DATABASE, config=config()) as broker:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("victim", b"job", id="one").wait(TIMEOUT)
        yield broker
    with MongoClient[Row](mongo_uri) as mongo:
        mongo.drop_database(DATABASE)


@pytest.fixture
def smq(broker: BrokerProcess) -> Iterator[Smq]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(broker.doors["smq"])
        yield Smq(plain)


@pytest.fixture
def web(broker: BrokerProcess) -> Web:
    return Web(broker.http)


def newest(client: Client, **choice: Any) -> Row:
    rows, _ = client.audit(limit=1, **choice)
    return rows[0] if rows else {}


def recorded(client: Client, **choice: Any) -> int:
    """How many acts are recorded, with those that are counted together."""
    return sum(int(row["count"]) for row in client.audit(limit=1000, **choice)[0])


def texts(row: Row) -> Row:
    """The fields of a record that are always the same for one act."""
    names = ("principal", "peer", "door", "action", "name", "about", "outcome", "code")
    return {name: row[name] for name in names if row[name] not in ("", {})}


# ------------------------------------------------------------------- every verb, every path


#: Requests in place of those of :data:`VERBS`, which only look.
CHANGES: dict[bytes, tuple[Any, ...]] = {
    wire.SCHEDULE: ("pause", {"name": "none"}),
    wire.USERS: ("remove", {"name": "none"}),
}


def needs_of(verb: bytes) -> Needs:
    return NEEDS[verb] if verb in NEEDS else (ADMIN_VERBS.get(verb) or OF_SESSIONS[verb]).needs


@pytest.mark.one_in(4, always=["PAUSE", "PURGE", "RESUME", "SET", "UNSET"])
@pytest.mark.parametrize("verb", VERBS, ids=bytes.decode)
def test_each_verb_that_changes_something_is_recorded(client: Client, smq: Smq, verb: bytes) -> None:
    fields = CHANGES.get(verb, VERBS[verb].fields)
    changes = needs_of(verb).is_act(list(fields)) and verb not in wire.LOOKS
    action = verb.decode().lower()
    smq.ask(verb, *fields)
    assert recorded(client, action=action) == changes


def test_who_moves_a_subscription_or_takes_it_is_recorded(client: Client, smq: Smq) -> None:
    smq.ask(wire.PUBLISH, "moved", pack(b"topic", b"text"), {})
    smq.ask(wire.HOLD, "moved", "sums", "update", {"after": 1})  # a new one moves nothing
    smq.ask(wire.FREE, "moved", "sums", None)
    taken = texts(newest(client, action="free"))
    smq.ask(wire.HOLD, "moved", "sums", "update", {"after": 0})
    assert (taken["name"], taken["outcome"], taken["about"]) == ("moved", "done", {"name": "sums"})
    moved = texts(newest(client, action="hold"))
    assert (moved["name"], moved["about"]) == ("moved", {"name": "sums", "watermark": 0})
    assert recorded(client, action="hold") == 1


@pytest.mark.parametrize("verb", [wire.SCHEDULE, wire.USERS])
def test_a_list_is_not_recorded(client: Client, smq: Smq, verb: bytes) -> None:
    before = recorded(client)
    assert smq.ask(verb, wire.LIST, {}).verb == wire.OK
    smq.ask(verb, wire.ONE, {"name": "none"})
    assert recorded(client) == before


PATHS = {path: needs for path, needs in all_needs().items() if needs is not None}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", PATHS)
def test_each_path_that_changes_and_no_other_is_recorded(client: Client, web: Web, path: str) -> None:
    names = {"queue": "victim", "job_id": "none", "name": "none", "task_id": "none", "subject": "queue"}
    names["stream"] = "none"
    before = recorded(client)
    answer = web.post(path.format(**names), {"what": "nothing", "state": "nothing"}, TOKEN)
    only_reads = answer.headers.get("allow", "").startswith("GET") or answer.status == 405
    changes = PATHS[path].administers and not only_reads
    assert recorded(client) - before == changes


# ------------------------------------------------------------------------- what is recorded


def test_a_record_says_who_from_where_what_and_when(broker: BrokerProcess, client: Client, web: Web) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("victim", b"job", id="another").wait(TIMEOUT)
    client.pause("victim")
    web.post(f"{V1}/queues/victim/resume", {}, TOKEN)
    client.change("victim", "another", priority=7)
    client.purge("victim")

    rows = client.audit(name="victim", outcome="done", limit=4)[0]
    purged, changed, resumed, paused = rows

    of_smq = {"peer": "127.0.0.1", "door": "smq", "name": "victim"}
    assert texts(paused) == {**of_smq, "action": "pause", "about": {"what": "delivery"}, "outcome": "done"}
    assert texts(resumed) == {
        **of_smq, "door": "http", "principal": "http_token", "action": "resume", "outcome": "done"
    }  # fmt: skip
    assert texts(changed)["about"] == {"job_id": "another", "priority": 7}
    assert purged["outcome"] in ("done", "begun")
    assert resumed["key"]
    assert paused["broker"].endswith(f":{broker.pid}")
    assert paused["at"] < resumed["at"] < changed["at"] < purged["at"]


DECLARATIONS: dict[str, Callable[[Client], object]] = {
    "pause": lambda client: client.pause("declared"),
    "resume": lambda client: client.resume("pages"),
    "set": lambda client: client.set_settings("declared", {"max_attempts": 7, "ttl": 60}),
    "unset": lambda client: client.unset_settings("pages", ["max_attempts"]),
    "schedule add": lambda client: client.add_schedule("declared", "declared", b"x", every=60.0),
    "schedule pause": lambda client: client.pause_schedule("nightly"),
    "schedule resume": lambda client: client.resume_schedule("declared"),
    "users permit": lambda client: client.users("permit", name="app", permissions={"read": ["declared"]}),
    "users rotate": lambda client: client.users("rotate", name="app", kind="curve", key=KEY, drop=True),
    "seek": lambda client: client.seek("declared", "reader", 1),
    "change": lambda client: client.change("declared", "late", priority=3),
}


def test_an_order_that_says_what_holds_already_changes_and_records_nothing(
    broker: BrokerProcess, client: Client, mongo_uri: str
) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("declared", b"x", id="late", delay=3600).wait(TIMEOUT)
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish("declared", "topic", b"message").wait(TIMEOUT)
    client.users("add", name="app", permissions={"read": ["declared"]}, key=KEY)

    def declare() -> list[object]:
        return [order(client) for order in DECLARATIONS.values()]

    def holds() -> tuple[int, list[Row]]:
        names = ("queues", "principals", "schedules", "subscriptions", "queue.declared")
        with MongoClient[Row](mongo_uri) as mongo:
            stored = [document for name in names for document in mongo[DATABASE][name].find().sort("_id", 1)]
        return recorded(client), stored

    declare()
    before = holds()
    # When all is said once more
    declare()
    assert holds() == before
    client.resume_schedule("nightly")


def test_a_bulk_operation_is_recorded_with_its_task_and_its_end(client: Client) -> None:
    client.purge("victim", state="dead")
    row = wait_until(lambda: newest(client, action="purge", outcome="done"), what="its end")
    assert row["about"]["state"] == "dead"
    assert row["about"]["count"] == 0
    assert row["about"]["task"]


def test_refusals_are_recorded_and_those_that_are_alike_are_counted(client: Client, web: Web) -> None:
    before = len(client.audit(limit=1000)[0])
    headers: Any = {"Authorization": "Bearer token-of-the-reader"}

    for _ in range(30):
        web.post(f"{V1}/queues/victim/pause", {}, **headers)
    for _ in range(20):
        with suppress(NotFoundError):
            client.cancel("victim", "unknown")

    rows = client.audit(limit=1000)[0]
    forbidden = newest(client, principal="reader")
    assert texts(forbidden) == {
        "principal": "reader",
        "peer": "127.0.0.1",
        "door": "http",
        "action": "pause",
        "name": "victim",
        "outcome": "refused",
        "code": "FORBIDDEN",
    }
    assert sum(row["count"] for row in rows if row["principal"] == "reader") == 30
    assert len(rows) - before <= 4  # a minute may end between two of them
    assert newest(client, action="cancel")["code"] == "NOT_FOUND"


def test_logins_are_recorded_and_what_was_typed_is_not(client: Client, web: Web) -> None:
    login = f"{V1}/login"
    cookie = web.post(login, {"user": "owner", "password": PASSWORD}).headers["set-cookie"].partition(";")[0]
    web.post(f"{V1}/logout", {}, Cookie=cookie)
    web.post(login, {"user": "owner", "password": "wrong-typed-text"})
    web.post(login, {"user": "secret-typed-as-user", "password": "x"})
    web.get(f"{V1}/queues", Authorization=f"Bearer {WRONG}")

    rows = client.audit(action="login")[0]

    assert [(row["principal"], row["peer"]) for row in rows if row["outcome"] == "done"] == [
        ("owner", "127.0.0.1")
    ]
    refused = {(row["name"], row["code"]): row["count"] for row in rows if row["outcome"] == "refused"}
    assert refused[("owner", "NOT_ADMITTED")] == 1
    assert refused[("", "NOT_ADMITTED")] >= 2
    assert "typed" not in str(rows)
    assert texts(newest(client, action="logout"))["principal"] == "owner"


def test_principals_are_recorded_not_secrets(client: Client, broker: BrokerProcess, mongo_uri: str) -> None:
    token = client.users(
        "add", name="mailer", permissions="push=mail.*", password=SHORT, token=True, note="laptop"
    )["token"]
    other = client.users("rotate", name="mailer", kind="token")["token"]
    client.users("remove", name="mailer")
    removed, rotated, added = client.audit(action="users", name="mailer")[0]
    assert (added["action"], added["about"]["permissions"]) == ("users add", "push=mail.*")
    assert added["about"]["fields"] == ["note", "password", "token"]
    assert (rotated["action"], rotated["about"]) == ("users rotate", {"kind": "token"})
    assert removed["action"] == "users remove"
    with MongoClient[Row](mongo_uri) as mongo:
        everything = str(list(mongo[DATABASE]["audit"].find())) + broker.log_text()
    for secret in (token, other, SHORT, "laptop", TOKEN, WRONG, PASSWORD):
        assert secret not in everything


def test_an_unknown_action_of_a_verb_leaves_nothing_that_a_client_chose(client: Client, smq: Smq) -> None:
    smq.ask(wire.USERS, "chosen-by-a-client", {"chosen-by-a-client": 1})
    assert "chosen" not in str(client.audit()[0])
    assert newest(client, action="users")["code"] == "BAD_FRAMES"


def test_pages_follow_each_other(client: Client) -> None:
    for _ in range(7):
        client.pause("pages")
        client.resume("pages")

    whole, nothing = client.audit(name="pages")
    first, after = client.audit(name="pages", limit=10)
    rest, end = client.audit(name="pages", limit=10, after=after)

    assert nothing is None
    assert end is None
    assert [row["id"] for row in first + rest] == [row["id"] for row in whole]
    assert len(whole) == 14
    since = whole[3]["at"]
    assert {row["id"] for row in client.audit(name="pages", since=since)[0]} >= {
        row["id"] for row in whole[:4]
    }
    assert client.audit(name="pages", until=whole[-1]["at"] - 1)[0] == []


@pytest.mark.parametrize(
    "options",
    [{"after": "x"}, {"after": "1" * 16 + "-a"}, {"limit": 0}, {"since": -1}, {"outcome": "x"}, {"x": 1}],
)
def test_a_wrong_choice_is_refused(smq: Smq, options: dict[str, Any]) -> None:
    assert smq.ask(wire.AUDIT, options).fields[0] == "BAD_FRAMES"


def test_it_is_read_over_http_with_operate_alone(client: Client, web: Web) -> None:
    owner: Any = {"Authorization": f"Bearer {TOKEN}"}
    reader: Any = {"Authorization": "Bearer token-of-the-reader"}
    client.pause("over-http")
    answer = web.get(f"{V1}/audit?name=over-http&limit=1", **owner)
    assert answer.status < REFUSED, answer.body
    assert [entry["action"] for entry in answer.json["records"]] == ["pause"]
    at, _, last = answer.json["next"].partition("-")
    assert (int(at), last) == (round(answer.json["records"][0]["at"] * 1000), answer.json["records"][0]["id"])
    assert web.get(f"{V1}/audit?after={answer.json['next']}&name=over-http", **owner).json["records"] == []
    assert web.get(f"{V1}/audit?since=yesterday", **owner).status == REFUSED
    assert web.get(f"{V1}/audit", **reader).status == 403


# -------------------------------------------------------------------------- the command


@pytest.fixture
def run(broker: BrokerProcess) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(app, ["--endpoint", broker.doors["smq"], "audit", *words])


def test_the_command_shows_records_chosen_by_its_options(client: Client, run: Callable[..., Result]) -> None:
    client.pause("shown")
    with suppress(NotFoundError):
        client.cancel("shown", "none")
    table = run("--name", "shown")
    chosen = json.loads(run("--json", "--name", "shown", "--outcome", "refused", "--newer-than", "1h").stdout)
    assert [line.split()[5] for line in table.stdout.splitlines()[1:]] == ["cancel", "pause"]
    assert [row["code"] for row in chosen["records"]] == ["NOT_FOUND"]
    assert run("--name", "shown", "--older-than", "1h").stderr.strip() == "no records"
    assert len(json.loads(run("--json", "--limit", "3").stdout)["records"]) == 3


@pytest.mark.full
def test_the_command_follows_what_comes(broker: BrokerProcess, client: Client) -> None:
    client.pause("shown")
    words = ["--endpoint", broker.doors["smq"], "audit", "--follow", "--json", "--name", "shown"]
    program = [sys.executable, "-u", "-m", "sluicemq", *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        ordering = Thread(target=_resume_until, args=(client, process))
        ordering.start()
        try:
            row = json.loads(process.stdout.readline() if process.stdout else "")
        finally:
            process.kill()
            process.wait(TIMEOUT)
            ordering.join(TIMEOUT)
    assert row["action"] in {"pause", "resume"}


def _resume_until(client: Client, process: subprocess.Popen[str]) -> None:
    """Pause and resume again and again: when the command has begun to look is not known."""
    while process.poll() is None:
        client.pause("shown")
        client.resume("shown")


# ------------------------------------------------------------------------- other brokers


def test_starts_and_reloads_are_recorded(mongo_uri: str, database: str) -> None:
    settings = config()
    with BrokerProcess(mongo_uri, database, config=settings) as broker:
        file = Path(broker.folder) / "broker.toml"
        changed = {**broker.config, "broker": {**broker.config["broker"], "stop_timeout": 7}}
        with Client(endpoint=broker.doors["smq"]) as client:
            file.write_text(tomli_w.dumps(changed))
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda: newest(client, action="reload"), what="the reload")
            file.write_text("[broker]\nnonsense = 1\n")
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda: newest(client, action="reload", outcome="refused"), what="the refusal")
            rows = client.audit()[0]
        file.write_text(tomli_w.dumps(broker.config))
        broker.terminate()
        broker.restart()
        with Client(endpoint=broker.doors["smq"]) as client:
            after = [entry["action"] for entry in client.audit()[0]]

    assert [row["action"] for row in rows] == ["reload", "reload", "start"]
    assert rows[1]["about"] == {"fields": ["[broker] stop_timeout"]}
    assert rows[0]["code"] == "BAD_CONFIGURATION"
    assert after == ["start", "stop", "reload", "reload", "start"]


@pytest.fixture
def keyed(mongo_uri: str, database: str, tmp_path: Path) -> Iterator[KeyedBroker]:
    with keyed_broker(mongo_uri, database, tmp_path) as keyed:
        yield keyed


def test_keys_that_get_in_and_those_that_do_not_are_recorded(keyed: KeyedBroker) -> None:
    new_key(keyed.folder / "stranger.key")
    for _ in range(3):
        with (
            Client(timeout=TIMEOUT, **keyed.access("stranger"), endpoint=keyed.endpoint) as stranger,
            pytest.raises(NotAdmittedError),
        ):
            stranger.ping()

    with keyed.admin() as client:
        rows = client.audit(action="login")[0]

    (admitted,) = [row for row in rows if row["outcome"] == "done"]
    refused = [row for row in rows if row["outcome"] == "refused"]
    assert (admitted["principal"], admitted["door"], admitted["peer"]) == ("admin", "smq", "127.0.0.1")
    assert len(admitted["key"]) == 12
    assert sum(row["count"] for row in refused) >= 3
    assert {row["code"] for row in refused} == {"NOT_ADMITTED"}


def test_a_change_in_the_store_itself_is_recorded(mongo_uri: str, database: str) -> None:
    made = users.act(mongo_uri, database, "add", {"name": "ops", "permissions": "all", "token": True})
    with pytest.raises(NotFoundError):
        users.act(mongo_uri, database, "remove", {"name": "nobody"})
    users.act(mongo_uri, database, "list", {})
    with MongoClient[Row](mongo_uri) as mongo:
        added, refused = mongo[database]["audit"].find().sort("at", 1)
    assert (added["door"], added["action"], added["name"], added["outcome"]) == (
        "store", "users add", "ops", "done"
    )  # fmt: skip
    assert "@" in added["peer"]
    assert (refused["action"], refused["code"]) == ("users remove", "NOT_FOUND")
    assert made["token"] not in str(added)


def test_without_retention_nothing_is_recorded(mongo_uri: str, database: str) -> None:
    settings = {"broker": {"audit_retention": 0}, "queues": {"mail": {}}}
    with (
        BrokerProcess(mongo_uri, database, config=settings) as broker,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        client.pause("mail")
        assert client.audit() == ([], None)
        broker.wait_log("an anonymous client from 127.0.0.1 (smq): pause mail: done what=delivery")
