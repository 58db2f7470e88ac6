"""Secrets are planted wherever a broker may have one; nothing that it writes or says has any of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import zmq
from pymongo import MongoClient

from sluicemq import Producer, Worker
from sluicemq.protocol import wire
from sluicemq.protocol.keys import KeyPair, encode, read_key, write_key_file
from sluicemq.protocol.secret_files import write_secret
from sluicemq_broker.command.users import hash_password
from support.broker_process import BrokerProcess
from support.http_reader import Answer, Web
from support.http_site import description
from support.long_forms import first_of
from support.ports import tcp
from support.raw_sockets import Smq
from support.redis_server import RedisServer
from support.tls_mongodb import PASSWORD, tls_mongodb
from support.traces import traced
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

DATABASE = "planted"
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
OPEN = "push=open read=open create=open work=open"


class Planted:
    """The secrets by the place where each was planted."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}

    def new(self, place: str, text: str = "") -> str:
        """Plant one."""
        self._secrets[place] = text or f"swordfish-{token_hex(12)}"
        return self._secrets[place]

    def found_in(self, data: bytes | str) -> list[str]:
        """Places of the secrets that are in some data, as they are or encoded."""
        raw = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        known = self._secrets.items()
        return [place for place, text in known if any(form in raw for form in _forms(text.encode()))]

    def found(self, said: Mapping[str, bytes | str]) -> list[str]:
        """Return each secret in each of these texts."""
        return [f"{secret} in {where}" for where, data in said.items() for secret in self.found_in(data)]


def _forms(secret: bytes) -> set[bytes]:
    """A secret as it is, and as headers, URIs and dumps have it; base64 at each place of three bytes."""
    shifted = (base64.b64encode(bytes(before) + secret)[4:-4] for before in range(3))
    return {secret, quote(secret).encode(), secret.hex().encode(), *shifted}


class Place:
    """A broker with secrets everywhere, in files of their own, and clients that use them, or try to."""

    def __init__(self, planted: Planted, broker: BrokerProcess, server: KeyPair) -> None:
        self.planted, self.broker, self._server = planted, broker, server
        self._context: zmq.Context[Any] = zmq.Context()
        self.web = Web(broker.http)

    def ask(self, verb: bytes, *fields: Any, **options: Any) -> wire.Message:
        """One request of a client with these options."""
        with self._socket(**options) as plain:
            smq = Smq(plain)
            assert smq.ask(wire.HELLO, {"client": "test"}).verb == wire.OK
            return smq.ask(verb, *fields)

    def knock(self, **options: Any) -> None:
        """Come with a key or a password that is refused."""
        with self._new_socket(**options) as plain:
            monitor = plain.get_monitor_socket(REFUSED)  # before it connects: a refusal comes once
            plain.connect(self.broker.doors["smq"])
            assert monitor.poll(int(TIMEOUT * 1000)), "nobody is refused"
            plain.disable_monitor()

    def keyed(self, pair: KeyPair) -> dict[str, Any]:
        """Options of a client with this key."""
        keys = {"publickey": pair.public, "secretkey": pair.secret, "serverkey": self._server.public}
        return {f"curve_{name}": encode(key).encode() for name, key in keys.items()}

    @contextmanager
    def _socket(self, **options: Any) -> Iterator[zmq.Socket[bytes]]:
        with self._new_socket(**options) as plain:
            plain.connect(self.broker.doors["smq"])
            yield plain

    @contextmanager
    def _new_socket(self, **options: Any) -> Iterator[zmq.Socket[bytes]]:
        with self._context.socket(zmq.DEALER) as plain:
            plain.linger = 0
            for name, value in options.items():
                setattr(plain, name, value)
            yield plain


@pytest.mark.parametrize("form", first_of("text", "json"))
def test_no_secret_is_written_or_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    planted = Planted()
    said: dict[str, str | bytes] = {}
    with ExitStack() as stack:
        mongodb = stack.enter_context(ExitStack())
        folder = made(tmp_path / "mongodb")
        store = mongodb.enter_context(tls_mongodb(folder, DATABASE))
        planted.new("password of MongoDB", PASSWORD)
        redis = stack.enter_context(RedisServer(password=planted.new("password of Redis")))
        server, operator = (new_pair(planted, name) for name in ("key of the broker", "key of the operator"))
        secrets = made(tmp_path / "secrets")
        write_secret(secrets / "mongodb", f"{store.with_password}\n")
        write_secret(secrets / "redis", redis.url)
        write_secret(secrets / "token", planted.new("token of the configuration"))
        write_key_file(secrets / "broker.key", server)
        clerks = planted.new("password of a principal"), planted.new("token of a principal")
        config = configuration(secrets, form, operator, *clerks)
        broker = stack.enter_context(
            BrokerProcess(None, DATABASE, config=config, folder=made(tmp_path / "broker"))
        )
        place = Place(planted, broker, server)

        said |= traces(place, monkeypatch)
        plain_clients(place, clerks[0])
        said |= principals(place, operator)
        said |= answers(place, clerks)
        said |= doctored(broker)
        said |= backed_up(broker)
        reload(place, secrets)
        said |= {f"/proc of {process.pid}": " ".join(process.cmdline()) for process in processes(broker)}
        said |= environments(broker)
        said |= collections(store.with_password)
        said["config check"] = checked(broker, form)
        redis.kill()
        mongodb.close()
        broker.wait_log("no MongoDB primary")
        broker.terminate()
        said |= {str(file): file.read_bytes() for file in everything(tmp_path / "broker")}

    assert {
        f"{place} in {where}" for where, data in said.items() for place in planted.found_in(data)
    } == set()
    assert "broker.log" in " ".join(said)


def test_no_secret_of_environment_or_flag_is_handed_on_by_a_broker_with_mongodb(tmp_path: Path) -> None:
    planted = Planted()
    with RedisServer(password=planted.new("password of Redis")) as redis:
        broker = BrokerProcess(
            folder=made(tmp_path / "broker"),
            args=["--http-token", planted.new("token as a flag"), "--log-level", "debug"],
            env={"SLUICEMQ_EVENT_BUS": redis.url},
        )
        with broker:
            said: dict[str, str | bytes] = {
                f"/proc of {process.pid}": " ".join(process.cmdline()) for process in processes(broker)
            }
            assert len(said) == 2, "the broker and its mongod"
            said |= environments(broker)
            said["ready file"] = (broker.folder / "ready.json").read_text()
        said |= {str(file): file.read_bytes() for file in everything(tmp_path / "broker")}

    assert {
        f"{place} in {where}" for where, data in said.items() for place in planted.found_in(data)
    } == set()


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def new_pair(planted: Planted, name: str) -> KeyPair:
    public, secret = zmq.curve_keypair()
    planted.new(name, secret.decode())
    planted.new(f"{name}, decoded", read_key(secret.decode()).hex())
    return KeyPair(read_key(public.decode()), read_key(secret.decode()))


def configuration(secrets: Path, form: str, operator: KeyPair, password: str, token: str) -> dict[str, Any]:
    """A configuration that names files of secrets, and has hashes of others."""
    door = {"endpoint": tcp(), "mechanism": ["null", "plain", "curve"], "anonymous": OPEN}
    return {
        "broker": {
            "endpoint": door,
            "http": "127.0.0.1:0",
            "mongodb_uri_file": str(secrets / "mongodb"),
            "event_bus_file": str(secrets / "redis"),
            "http_token_file": str(secrets / "token"),
            "log_level": "debug",
            "log_format": form,
            "history": True,
            "poll": 0.5,
            "stop_timeout": 1.0,
        },
        "security": {
            "mechanism": ["curve", "plain"],
            "secret_key_file": str(secrets / "broker.key"),
            "principals": {
                "operator": {"keys": [encode(operator.public)], "permissions": "all"},
                "clerk": {
                    "password": hash_password(password),
                    "tokens": [token_hash(token)],
                    "permissions": "all",
                },
            },
        },
        "queues": {"open": {"max_attempts": 1}},
    }


def traces(place: Place, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Jobs that are done, and that die, and their spans."""

    def work(job: Any) -> None:
        if job.payload == b"bad":
            raise ValueError("it is bad")

    endpoint = place.broker.doors["smq"]
    with (
        traced(monkeypatch) as spans,
        Producer(endpoint=endpoint) as producer,
        Worker("open", work, endpoint=endpoint),
    ):
        for payload in (b"good", b"bad"):
            producer.push("open", payload).wait(TIMEOUT)
        wait_until(lambda: len(spans.all()) >= 4, what="the spans")
        return {"spans": "".join(span.to_json() for span in spans.all())}


def plain_clients(place: Place, password: str) -> None:
    """Clients with passwords and keys: right ones, wrong ones, and unknown ones."""
    planted = place.planted
    ping = place.ask(wire.PING, plain_username=b"clerk", plain_password=password.encode())
    assert ping.verb == wire.OK
    for user in (b"clerk", b"nobody"):
        wrong = planted.new(f"wrong password of {user.decode()}")
        place.knock(plain_username=user, plain_password=wrong.encode())
    stranger = place.ask(wire.PING, **place.keyed(new_pair(planted, "key of a stranger")))
    assert stranger.verb == wire.OK  # as the anonymous client that it is


def principals(place: Place, operator: KeyPair) -> dict[str, str]:
    """A principal that is added, and its secrets changed."""
    planted = place.planted

    def users(action: str, **fields: Any) -> Any:
        answer = place.ask(wire.USERS, action, fields, **place.keyed(operator))
        assert answer.verb == wire.OK, answer
        return answer.fields[0]

    added = users(
        "add",
        name="guest",
        password=planted.new("password that was added"),
        token=True,
        permissions="read=open",
    )
    planted.new("token that was made", added["token"])
    users("rotate", name="guest", kind="password", password=planted.new("password that was changed"))
    return {"USERS": repr((users("list"), users("show", name="guest")))}


def answers(place: Place, clerk: tuple[str, str]) -> dict[str, str]:
    """Answers of all paths, to callers with right and wrong tokens, cookies and passwords."""
    planted, web, (password, token) = place.planted, place.web, clerk
    bearers = {"right": token, "wrong": planted.new("wrong token"), "none": ""}
    cookie = logged_in(place, {"user": "clerk", "password": password})
    wrong = planted.new("wrong password of a login"), planted.new("wrong token of a login")
    failed = [
        web.post("/api/v1/login", {"user": "clerk", "password": wrong[0]}),
        web.post("/api/v1/login", {"token": wrong[1]}),
    ]
    assert {answer.status for answer in failed} == {401}
    found = {f"login {number}": shown(answer) for number, answer in enumerate(failed)}
    for path, methods in paths().items():
        for method in methods:
            for name, bearer in bearers.items():
                given = {"Authorization": f"Bearer {bearer}"} if bearer else {}
                found[f"{method} {path}, {name} token"] = shown(asked(web, path, method, **given))
            for name, value in (("right", cookie), ("wrong", cookie[:-1] + "x")):
                found[f"{method} {path}, {name} cookie"] = shown(asked(web, path, method, Cookie=value))
    shown_at_all = [text for text in found.values() if text.startswith("200")]
    assert len(shown_at_all) > 20, found
    return found


def logged_in(place: Place, body: Mapping[str, str]) -> str:
    answer = place.web.post("/api/v1/login", dict(body))
    assert answer.status == 200, answer
    cookie = answer.headers["set-cookie"].partition(";")[0]
    place.planted.new("cookie", cookie.partition("=")[2])
    assert not place.planted.found_in(answer.body)
    return cookie


def paths() -> dict[str, list[str]]:
    """All paths of the HTTP door whose answers end, with their methods, but login and logout."""
    apart = ("/api/v1/live", "/api/v1/login", "/api/v1/logout")
    names = {"{queue}": "open", "{job_id}": "1", "{subject}": "queue", "{name}": "open", "{task_id}": "1"}
    found = {}
    for path, methods in description()["paths"].items():
        if path not in apart:
            for place, name in names.items():
                path = path.replace(place, name)  # noqa: PLW2901
            found[path] = [method.upper() for method in methods if method in ("get", "post")]
    return found


def asked(web: Web, path: str, method: str, **headers: str) -> Answer:
    return web.post(path, {}, "", **headers) if method == "POST" else web.get(path, method, None, **headers)


def shown(answer: Answer) -> str:
    return f"{answer.status} {answer.headers} {answer.body.decode(errors='replace')}"


def reload(place: Place, secrets: Path) -> None:
    """Another token, and then one that is none."""
    file, broker = secrets / "token", place.broker
    for text, told in (
        (place.planted.new("another token"), "SIGHUP: now [broker] http_token: another one"),
        (place.planted.new("a token that is none", "swordfish of two words"), f"expected in {file} "),
    ):
        file.write_text(text)
        broker.send_signal(signal.SIGHUP)
        broker.wait_log(told)
    broker.wait_log("the configuration is not valid, the former one stays")
    assert "callbacks_failed" not in broker.log_text()


def processes(broker: BrokerProcess) -> list[psutil.Process]:
    process = psutil.Process(broker.pid)
    return [process, *process.children(recursive=True)]


def environments(broker: BrokerProcess) -> dict[str, str]:
    """Environments of what the broker has started; its own only its user can read."""
    return {
        f"environment of {child.pid}": repr(child.environ())
        for child in psutil.Process(broker.pid).children(recursive=True)
    }


def collections(uri: str) -> dict[str, str]:
    """All documents of all databases, with MongoDB's own notes of changes and of users."""
    found = {}
    with MongoClient[dict[str, Any]](uri) as client:
        for database in client.list_database_names():
            for name in client[database].list_collection_names():
                found[f"{database}.{name}"] = repr(list(client[database][name].find()))
    assert "$argon2id" in found[f"{DATABASE}.principals"]
    return found


def run_beside(broker: BrokerProcess, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the broker's folder, with nothing of the broker's in the environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEMQ_")}
    return subprocess.run(
        command, cwd=broker.folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def checked(broker: BrokerProcess, form: str) -> str:
    """What the check of the configuration says of it."""
    command = [sys.executable, "-m", "sluicemq_broker", "--check-config", "--config", "broker.toml"]
    done = run_beside(broker, [*command, *(["--json"] if form == "json" else [])])
    return done.stdout + done.stderr


def doctored(broker: BrokerProcess) -> dict[str, str]:
    """Report and output of the doctor, with the log of the broker."""
    report = broker.folder / "report.json"
    command = [sys.executable, "-m", "sluicemq", "doctor", "--config", "broker.toml", "--log", "broker.log"]
    done = run_beside(broker, [*command, "--report", str(report)])
    found = json.loads(report.read_text())
    assert found["mongodb"], done
    assert found["config"], done
    assert found["answers"], done
    assert found["log"], done
    return {"doctor": done.stdout + done.stderr, "report of the doctor": report.read_text()}


def backed_up(broker: BrokerProcess) -> dict[str, str]:
    """Output of a backup, and all that is in its file, which has what the collections have."""
    out = broker.folder / "backups"
    done = run_beside(
        broker, [sys.executable, "-m", "sluicemq", "backup", "--config", "broker.toml", "--out", str(out)]
    )
    assert done.returncode == 0, done
    [file] = out.iterdir()
    with tarfile.open(file) as tar:
        content = {name: stored.read() for name in tar.getnames() if (stored := tar.extractfile(name))}
    file.unlink()  # what is compressed is looked at here
    plain = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in content.items()}
    return {"backup": done.stdout + done.stderr} | {
        f"{name} of the backup": data.decode(errors="replace") for name, data in plain.items()
    }


def everything(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def token_hash(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
