"""A broker that wants keys: library and commands get in, are refused by name, and change principals."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import zmq

from sluicemq import Access, Client, ForbiddenError, NotAdmittedError, Producer, Publisher, Reader, Worker
from sluicemq.protocol.keys import key_id, read_key
from support.keyed_broker import KeyedBroker, keyed_broker, new_key
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def keyed(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedBroker]:
    with keyed_broker(mongo_uri, f"keyed_{os.getpid()}", tmp_path_factory.mktemp("keys")) as keyed:
        yield keyed


Command = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def sluicemq(keyed: KeyedBroker) -> Command:
    """Run a command as the administrator."""

    def run(*words: str, stdin: str | None = None, **variables: str) -> CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLUICEMQ_")},
            "SLUICEMQ_ENDPOINT": keyed.endpoint,
            **keyed.variables(),
            **variables,
        }
        command = [sys.executable, "-P", "-m", "sluicemq", *words]
        return subprocess.run(
            command,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    return run


def test_everything_of_the_library_works_with_a_key(keyed: KeyedBroker, queue: str) -> None:
    access = Access.chosen(keyed.endpoint, keyed.access())
    with Producer(endpoint=access) as producer, Worker(queue, lambda job: job.payload * 2, endpoint=access):
        assert producer.call(queue, b"ab", timeout=TIMEOUT) == b"abab"
        producer.push(queue, bytes(5 << 20)).wait(TIMEOUT)
    with Publisher(endpoint=access) as publisher:
        publisher.publish(f"s-{queue}", "topic", b"one").wait(TIMEOUT)
    with Reader(f"s-{queue}", endpoint=access) as reader:
        assert [message.payload for message in reader] == [b"one"]
    with Client(endpoint=access) as client:
        client.pop(queue)
        assert client.stats()["broker"]


def test_a_password_gets_in_and_a_wrong_one_does_not(keyed: KeyedBroker) -> None:
    with keyed.admin() as admin:
        admin.users("add", name="ann", password="correct horse", permissions="operate")  # noqa: S106
    with Client(user="ann", password="correct horse", endpoint=keyed.endpoint) as client:  # noqa: S106
        assert client.stats()
    with (
        Client(user="ann", password="wrong horse", endpoint=keyed.endpoint) as client,  # noqa: S106
        pytest.raises(NotAdmittedError, match="the broker refused user 'ann'"),
    ):
        client.ping()


def test_a_principal_that_may_not_do_something_is_told_so(keyed: KeyedBroker, queue: str) -> None:
    public = new_key(keyed.folder / f"{queue}.key")
    with keyed.admin() as admin:
        admin.users("add", name=f"p-{queue}", key=public, permissions=f"push={queue} create=*")
    with (
        Client(**keyed.access(queue), endpoint=keyed.endpoint) as client,
        pytest.raises(ForbiddenError) as raised,
    ):
        client.users("list")
    assert not isinstance(raised.value, NotAdmittedError)


def test_a_key_that_is_added_lets_a_waiting_worker_in_and_one_that_ends_puts_it_out(
    keyed: KeyedBroker, queue: str, sluicemq: Command
) -> None:
    # Given: a client that is refused
    name, public = f"p-{queue}", new_key(keyed.folder / f"{queue}.key")
    with Client(**keyed.access(queue), endpoint=keyed.endpoint) as client:
        with pytest.raises(NotAdmittedError):
            client.ping()
        added = sluicemq("user", "add", name, "push=*", "read=*", "--key", public, "--note", "laptop")
        assert (added.returncode, added.stdout) == (0, f"added {name}\n"), added.stderr
        wait_until(lambda: _enters(client), what="the client, let in")
        ended = sluicemq("user", "rotate", name, "--end", key_id(read_key(public)))
        assert ended.returncode == 0, ended.stderr
        wait_until(lambda: not _enters(client), what="the client, put out")


def _enters(client: Client) -> bool:
    try:
        client.ping()
    except NotAdmittedError:
        return False
    return True


class TestUserCommand:
    def test_a_principal_is_added_shown_changed_and_removed(self, sluicemq: Command, queue: str) -> None:
        name = f"p-{queue}"
        public = zmq.curve_keypair()[0].decode()
        added = sluicemq("user", "add", name, "push=mail.*", "operate", "--key", public, "--token", "--json")
        row = json.loads(added.stdout)
        assert row["permissions"] == {"push": ["mail.*"], "operate": ["*"]}
        assert {entry["kind"] for entry in row["keys"]} == {"curve", "token"}
        assert row["token"] in added.stdout
        # shown
        assert name in sluicemq("user", "list").stdout
        shown = sluicemq("user", "show", name)
        assert "push=mail.* operate" in shown.stdout
        assert public in shown.stdout
        assert row["token"] not in shown.stdout
        # changed
        assert (
            sluicemq("user", "permit", name, "work=*", "--tenant", "acme", "--max-rate", "10").returncode == 0
        )
        changed = json.loads(sluicemq("user", "show", name, "--json").stdout)
        assert (changed["permissions"], changed["tenant"]) == ({"work": ["*"]}, "acme")
        assert changed["limits"] == {"max_rate": 10}
        # removed
        assert sluicemq("user", "remove", name, "--yes").stdout == f"removed {name}\n"
        gone = sluicemq("user", "show", name)
        assert (gone.returncode, "there is no principal" in gone.stderr) == (1, True)

    def test_key_files_stand_for_public_keys(self, sluicemq: Command, queue: str, tmp_path: Path) -> None:
        name, file = f"p-{queue}", str(tmp_path / "client.key")
        public = sluicemq("key", "new", "--out", file).stdout.strip()
        assert sluicemq("user", "add", name, "push=mail.*", "--key", file).stdout == f"added {name}\n"
        shown = sluicemq("user", "show", name)
        assert public in shown.stdout
        assert re.search(r"^changed_at +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", shown.stdout, re.MULTILINE)
        os.chmod(file, 0o644)  # noqa: PTH101
        refused = sluicemq("user", "rotate", name, "--key", file)
        assert (refused.returncode, f"chmod 600 {file}" in refused.stderr) == (2, True)

    def test_who_may_read_none_is_told_so(self, keyed: KeyedBroker, sluicemq: Command, queue: str) -> None:
        public = new_key(keyed.folder / f"{queue}.key")
        sluicemq("push", queue, "x")
        sluicemq("user", "add", queue, "push=mail.*", "--key", public)
        found = sluicemq("queues", "--json", **keyed.variables(queue))
        told = "you may not see queues: that takes the permission read, and you have push=mail.*"
        assert (json.loads(found.stdout), told in found.stderr) == ({"queues": []}, True)
        with Client(**keyed.access(queue), endpoint=keyed.endpoint) as client:
            client.ping()
            assert client.permissions == {"push": ["mail.*"]}
        with keyed.admin() as client:
            client.ping()
            assert client.permissions is None

    def test_a_token_is_printed_alone_and_once(self, sluicemq: Command, queue: str) -> None:
        name = f"p-{queue}"
        assert sluicemq("user", "add", name, "read", "--token").returncode == 0
        made = sluicemq("user", "rotate", name, "--token", "--drop")
        assert len(made.stdout.strip()) >= 40
        assert "shown only now" in made.stderr

    def test_passwords_come_from_stdin_alone(self, keyed: KeyedBroker, sluicemq: Command, queue: str) -> None:
        name = f"p-{queue}"
        added = sluicemq("user", "add", name, "operate", "--password-file", "-", stdin="battery staple\n")
        assert added.returncode == 0, added.stderr
        with Client(user=name, password="battery staple", endpoint=keyed.endpoint) as client:  # noqa: S106
            client.ping()

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["add", "x", "push"], "give its --key, --password, --password-file or --token"),
            (["add", "x", "fly", "--token"], "actions are push, work"),
            (["add", "x", "push", "--key", "/none"], "--key is no file, and not a key of 40 characters"),
            (["rotate", "x"], "give one of --key"),
            (["permit", "x"], "give PERMISSIONS"),
            (["add", "x", "push", "--password-file", "/none"], "can't read the password file /none"),
        ],
    )
    def test_wrong_usage_is_said_at_once(self, sluicemq: Command, words: list[str], says: str) -> None:
        refused = sluicemq("user", *words)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused.stderr

    def test_a_password_is_hashed_for_the_configuration_file(self, sluicemq: Command) -> None:
        assert sluicemq("user", "hash", "--password-file", "-", stdin="x" * 20).stdout.startswith(
            "$argon2id$"
        )


class TestAtTheStore:
    """The way back in when nobody may operate any more."""

    def test_principals_need_no_broker(self, mongo_uri: str, database: str, sluicemq: Command) -> None:
        store = ["--mongodb-uri", mongo_uri, "--database", database]
        added = sluicemq("user", "add", "back", "all", "--token", *store)
        assert added.returncode == 0, added.stderr
        assert "without a broker" in added.stderr
        assert [load["name"] for load in json.loads(sluicemq("user", "list", "--json", *store).stdout)["principals"]] == ["back"]  # fmt: skip # noqa: E501
        assert "back" not in sluicemq("user", "list").stdout

    @pytest.mark.full
    def test_its_uri_can_stand_in_a_file(
        self, mongo_uri: str, database: str, sluicemq: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "uri").touch(0o600)
        (tmp_path / "uri").write_text(f"{mongo_uri}\n")
        store = ["--mongodb-uri-file", str(tmp_path / "uri"), "--database", database]
        assert sluicemq("user", "list", *store).returncode == 0

    def test_its_uri_is_in_the_environment(self, mongo_uri: str, database: str, sluicemq: Command) -> None:
        missing = sluicemq("user", "list", "--mongodb-uri")
        assert (missing.returncode, "or in SLUICEMQ_MONGODB_URI" in missing.stderr) == (2, True)
        found = sluicemq(
            *("user", "list", "--database", database, "--mongodb-uri"), SLUICEMQ_MONGODB_URI=mongo_uri
        )
        assert (found.returncode, "without a broker" in found.stderr) == (0, True)

    @pytest.mark.full
    def test_its_uri_leaves_the_command_line(self) -> None:
        uri = "mongodb://ann:planted-secret@127.0.0.1:1/"
        command = [sys.executable, "-P", "-m", "sluicemq", "user", "list", "--mongodb-uri", uri]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                shown = Path(f"/proc/{process.pid}/cmdline")
                wait_until(lambda: b"***" in shown.read_bytes(), what="the hidden URI")
                assert b"planted-secret" not in shown.read_bytes()
                output = process.communicate(timeout=TIMEOUT)[0]
            finally:
                process.kill()
        assert b"planted-secret" not in output
        assert process.returncode not in (0, None)


@pytest.mark.full
@pytest.mark.parametrize("door", ["library", "rep"])
def test_the_bench_measures_brokers_that_want_keys(keyed: KeyedBroker, sluicemq: Command, door: str) -> None:
    ends = ["--frontend", keyed.process.doors["req"], "--backend", keyed.process.doors["rep"]]
    measured = sluicemq(
        *("bench", "both", "--jobs", "50", "--door", door, "--endpoint", keyed.endpoint, "--json"),
        *("--key-file", str(keyed.folder / "admin.key"), "--server-key", keyed.server_key),
        *(ends if door == "rep" else ()),
    )
    assert measured.returncode == 0, measured.stderr
