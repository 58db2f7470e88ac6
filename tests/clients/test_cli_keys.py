"""``sluicemq key``, and what the commands do with keys, passwords and profiles at a broker with a guard."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from click import ClickException
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from clients.guarded_broker import CURVE, PLAIN, GuardedBroker
from sluicemq.cli.app import app
from sluicemq.cli.keys import _new_pair
from sluicemq.protocol import wire
from sluicemq.protocol.keys import encode, key_id, read_key, read_key_file
from support.keyed_broker import new_key


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ENDPOINT", "KEY_FILE", "SERVER_KEY", "USER", "PASSWORD_FILE", "PROFILE"):
        monkeypatch.delenv(f"SLUICEMQ_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def broker() -> Iterator[GuardedBroker]:
    broker = GuardedBroker(CURVE)
    broker.start()
    yield broker
    broker.stop()


def sluicemq(*words: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, words)), input=stdin)


class TestKeys:
    def test_a_new_pair_goes_into_a_file_and_its_public_key_to_stdout(self, tmp_path: Path) -> None:
        file = tmp_path / "client.key"
        made = sluicemq("key", "new", "--out", file)
        pair = read_key_file(file)
        assert (made.exit_code, made.stdout) == (0, encode(pair.public) + "\n")
        assert key_id(pair.public) in made.stderr
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert encode(pair.secret) not in made.output

    def test_without_a_file_the_pair_is_printed_as_one_and_said_to_be_secret(self, tmp_path: Path) -> None:
        made = sluicemq("key", "new")
        file = tmp_path / "client.key"
        file.touch(0o600)
        file.write_text(made.stdout)
        assert encode(read_key_file(file).public) in made.stdout
        assert "keep the secret key to yourself" in made.stderr

    def test_two_pairs_differ(self) -> None:
        assert sluicemq("key", "new").stdout != sluicemq("key", "new").stdout

    def test_no_file_is_written_over(self, tmp_path: Path) -> None:
        file = tmp_path / "client.key"
        public = new_key(file)
        refused = sluicemq("key", "new", "--out", file)
        assert (refused.exit_code, f"{file} exists" in refused.stderr) == (1, True)
        assert encode(read_key_file(file).public) == public
        assert sluicemq("key", "new", "--out", tmp_path / "none" / "key").exit_code == 1

    def test_a_key_is_shown_without_its_secret(self, tmp_path: Path) -> None:
        file = tmp_path / "client.key"
        public = new_key(file)
        shown = sluicemq("key", "show", file)
        assert (shown.exit_code, shown.stdout) == (0, public + "\n")
        values = json.loads(sluicemq("key", "show", file, "--json").stdout)
        assert values == {"public_key": public, "key_id": key_id(read_key(public))}
        assert encode(read_key_file(file).secret) not in shown.output

    def test_a_file_that_others_can_read_is_refused_with_what_mends_it(self, tmp_path: Path) -> None:
        file = tmp_path / "client.key"
        new_key(file)
        file.chmod(0o644)
        refused = sluicemq("key", "show", file)
        assert (refused.exit_code, f"chmod 600 {file}" in refused.stderr) == (2, True)

    def test_a_libzmq_without_curve_is_named(self) -> None:
        with pytest.raises(ClickException, match="was built without CURVE"):
            _new_pair(has={"curve": False}.__getitem__)


class TestConnecting:
    @pytest.mark.parametrize("first", [True, False], ids=["before the command", "behind it"])
    def test_a_command_takes_a_key(self, broker: GuardedBroker, tmp_path: Path, *, first: bool) -> None:
        broker.keys.add(new_key(tmp_path / "key"))
        options = ["--endpoint", broker.endpoint, "--key-file", tmp_path / "key"]
        options += ["--server-key", broker.server_key]
        words = [*options, "ping"] if first else ["ping", *options]
        assert f"{broker.endpoint} answers" in sluicemq(*words).stdout

    def test_a_command_takes_a_profile(self, broker: GuardedBroker, tmp_path: Path) -> None:
        folder = tmp_path / "sluicemq"
        folder.mkdir()
        broker.keys.add(new_key(folder / "key"))
        (folder / "config.toml").touch(0o600)
        (folder / "config.toml").write_text(
            f'[profiles.here]\nendpoint = "{broker.endpoint}"\nkey_file = "key"\n'
            f'server_key = "{broker.server_key}"\n'
        )
        assert f"{broker.endpoint} answers" in sluicemq("ping", "--profile", "here").stdout
        refused = sluicemq("ping", "--profile", "there")
        assert (refused.exit_code, "there is no profile 'there'" in refused.stderr) == (2, True)

    @pytest.mark.parametrize("line", ["ping", "push q x", "work q --print", "stream read s", "stream tail s"])
    def test_a_refused_key_has_its_own_code(self, broker: GuardedBroker, tmp_path: Path, line: str) -> None:
        public = new_key(tmp_path / "key")
        where = ["--endpoint", broker.endpoint, "--server-key", broker.server_key]
        refused = sluicemq(*where, "--key-file", tmp_path / "key", *line.split())
        assert refused.exit_code == 5
        assert f"can't enter {broker.endpoint}: the broker refused this key" in refused.stderr
        assert key_id(read_key(public)) in refused.stderr

    def test_so_has_a_wrong_server_key(self, broker: GuardedBroker, tmp_path: Path) -> None:
        broker.keys.add(new_key(tmp_path / "key"))
        other = zmq.curve_keypair()[0].decode()
        where = ["--endpoint", broker.endpoint, "--key-file", tmp_path / "key", "--server-key", other]
        refused = sluicemq("--timeout", "0.5", *where, "ping")
        assert (refused.exit_code, "its key is another one than server_key" in refused.stderr) == (5, True)

    def test_without_a_key_the_command_says_what_the_broker_wants(self, broker: GuardedBroker) -> None:
        # On a busy machine a client may see the hang-up before the mechanism; its next try says it right.
        refused = sluicemq("--endpoint", broker.endpoint, "--timeout", "60", "--json", "ping")
        assert (refused.exit_code, "give key_file and server_key" in refused.stderr) == (5, True)
        assert json.loads(refused.stdout)["error"]["code"] == "FORBIDDEN"

    @pytest.mark.parametrize("first", [True, False], ids=["before the command", "behind it"])
    def test_a_shell_completes_with_keys(self, broker: GuardedBroker, tmp_path: Path, *, first: bool) -> None:
        broker.keys.add(new_key(tmp_path / "key"))
        broker.on[wire.QUEUES] = lambda _message: [{"name": "mail"}]
        options = ["--endpoint", broker.endpoint, "--key-file", str(tmp_path / "key")]
        options += ["--server-key", broker.server_key]
        shell = ShellComplete(app, {}, "sluicemq", "_SLUICEMQ_COMPLETE")
        line = [*options, "jobs", "list"] if first else ["jobs", "list", *options]
        assert [completion.value for completion in shell.get_completions(line, "ma")] == ["mail"]

    def test_a_user_takes_a_password_of_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = GuardedBroker(PLAIN)
        broker.start()
        try:
            broker.passwords["ann"] = "s3cret"
            (tmp_path / "password").touch(0o600)
            (tmp_path / "password").write_text("s3cret\n")
            where = ["--endpoint", broker.endpoint, "--user", "ann", "ping"]
            missing = sluicemq(*where)
            assert (missing.exit_code, "user: it needs a password" in missing.stderr) == (2, True)
            monkeypatch.setenv("SLUICEMQ_PASSWORD_FILE", str(tmp_path / "password"))
            assert sluicemq(*where).exit_code == 0
        finally:
            broker.stop()
