"""Choice of endpoint, key and password: keywords, the environment, a profile, the default, in this order."""

from pathlib import Path
from typing import Any

import pytest
import zmq

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import Access, Client
from sluicemq.protocol.keys import KeyPair, read_key, write_key_file
from sluicemq.transport.credentials import _of_curve
from sluicemq.transport.profiles import _read
from support.keyed_broker import new_key

KEY = "0" * 40  # a key in Z85
PROFILES = f"""
default = "prod"
[profiles.prod]
endpoint = "tcp://prod:1"
key_file = "prod.key"
server_key = "{KEY}"
[profiles.dev]
endpoint = "tcp://dev:2"
user = "dev"
password_file = "dev.password"
"""


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ENDPOINT", "KEY_FILE", "SERVER_KEY", "USER", "PASSWORD_FILE", "PROFILE"):
        monkeypatch.delenv(f"SLUICEMQ_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def secret_file(file: Path, text: str) -> Path:
    file.touch(0o600)
    file.write_text(text)
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "sluicemq"
    folder.mkdir()
    new_key(folder / "prod.key")
    secret_file(folder / "dev.password", "of-dev\n")
    return secret_file(folder / "config.toml", PROFILES)


@pytest.mark.usefixtures("config")
class TestOrder:
    def test_the_default_profile_is_used_where_nothing_is_said(self) -> None:
        access = Access.chosen(None)
        assert (access.endpoint, access.mechanism, access.keys is None) == ("tcp://prod:1", "CURVE", False)

    def test_a_keyword_or_the_environment_names_a_profile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = Access(("tcp://dev:2",), user="dev", password="of-dev")  # noqa: S106
        assert Access.chosen(None, {"profile": "dev"}) == expected
        monkeypatch.setenv("SLUICEMQ_PROFILE", "dev")
        assert Access.chosen(None) == expected
        assert Access.chosen(None, {"profile": "prod"}).endpoint == "tcp://prod:1"

    def test_the_default_profile_is_for_no_other_endpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Access.chosen("tcp://other:3") == Access(("tcp://other:3",))
        monkeypatch.setenv("SLUICEMQ_ENDPOINT", "tcp://other:4")
        assert Access.chosen(None) == Access(("tcp://other:4",))

    def test_a_keyword_beats_the_environment_and_that_profiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLUICEMQ_USER", "of-environment")
        assert Access.chosen(None, {"profile": "dev"}).user == "of-environment"
        assert Access.chosen(None, {"profile": "dev"}).password == "of-dev"  # noqa: S105
        assert Access.chosen(None, {"profile": "dev", "user": "mine"}).user == "mine"
        assert Access.chosen("tcp://mine:5", {"profile": "dev"}).endpoint == "tcp://mine:5"
        monkeypatch.setenv("SLUICEMQ_ENDPOINT", "tcp://of-environment:6")
        assert Access.chosen(None, {"profile": "dev"}).endpoint == "tcp://of-environment:6"

    def test_a_user_of_the_program_is_not_mixed_with_a_key_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        new_key(tmp_path / "key")
        monkeypatch.setenv("SLUICEMQ_KEY_FILE", str(tmp_path / "key"))
        monkeypatch.setenv("SLUICEMQ_SERVER_KEY", KEY)
        assert Access.chosen("tcp://a:1").mechanism == "CURVE"
        assert Access.chosen("tcp://a:1", {"user": "ann", "password": "x"}).mechanism == "PLAIN"

    def test_a_password_comes_from_a_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        file = secret_file(tmp_path / "password", "of a file\n")
        monkeypatch.setenv("SLUICEMQ_PASSWORD_FILE", str(file))
        assert Access.chosen("tcp://a:1", {"user": "ann"}).password == "of a file"  # noqa: S105


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key_file": "/none", "server_key": KEY}, "^key_file: can't read the key file /none"),
        ({"key_file": "A KEY"}, "^key_file: it needs a server_key beside it"),
        ({"key_file": "A KEY", "server_key": "short"}, "^server_key: expected a key of 40 characters"),
        ({"key_file": "A KEY", "server_key": KEY, "user": "a"}, "give a key or a user, not both"),
        ({"user": "ann"}, "^user: it needs a password beside it"),
        ({"user": "a" * 256, "password": "x"}, "^user: expected 1 to 255 bytes"),
        ({"user": "ann", "password": ""}, "^password: expected 1 to 255 bytes"),
        ({"password": "x"}, "a password needs a user beside it"),
        ({"profile": "none"}, "there is no profile 'none': there is no file /.*/sluicemq/config.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, options: dict[str, str], says: str) -> None:
    file = tmp_path / "key"
    new_key(file)
    given: Any = {key: str(file) if option == "A KEY" else option for key, option in options.items()}
    with pytest.raises(ValueError, match=says):
        Client(**given, endpoint="tcp://127.0.0.1:1")


def test_unknown_keywords_and_wrong_types_are_refused() -> None:
    make: Any = Client
    with pytest.raises(TypeError, match="unexpected keyword argument 'keyfile'"):
        make("tcp://127.0.0.1:1", keyfile="x")
    with pytest.raises(TypeError, match="server_key is a str, not bytes"):
        make("tcp://127.0.0.1:1", server_key=b"x")
    with pytest.raises(TypeError, match="endpoint is a str or a list of str, not int"):
        make(5550)
    with pytest.raises(TypeError, match="leave out user"):
        make(Access(("tcp://127.0.0.1:1",)), user="ann")


def test_a_key_file_whose_keys_are_no_pair_is_refused(tmp_path: Path) -> None:
    (public, _), (_, secret) = zmq.curve_keypair(), zmq.curve_keypair()
    write_key_file(tmp_path / "key", KeyPair(read_key(public.decode()), read_key(secret.decode())))
    with pytest.raises(ValueError, match="are no pair") as raised:
        Access.chosen("tcp://a:1", {"key_file": tmp_path / "key", "server_key": KEY})
    assert secret.decode() not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[profiles", "the file of profiles .* is no TOML"),
        ("default = 1", "there is no profile 1 in it; it has none"),
        ("[profiles.dev]", "there is no profile 'prod' in it; it has dev"),
        ("[profiles.prod]\nendpiont = 'x'", "profile prod: 'endpiont' is no key of a profile: endpoint,"),
        ("[profiles.prod]\nendpoint = 1", "profile prod: endpoint is a text that is not empty"),
        ("[profiles.prod]\nendpoint = 'a:1'", "profile prod: endpoint: 'a:1' is no endpoint"),
        ("[profiles.prod]\nendpoint = []", "profile prod: endpoint is a text that is not empty"),
        ("[profiles.prod]\nendpoint = ['tcp://a:1', 'b:1']", "profile prod: endpoint: 'b:1' is no endpoint"),
        ("[profiles.prod]\nuser = ['ann']", "profile prod: user is a text that is not empty"),
        (f"[profiles.prod]\nkey_file = 'no'\nserver_key = '{KEY}'", "profile prod: key_file: can't read"),
        ("[profiles.prod]\nserver_key = 'x'", "profile prod: server_key: expected a key of 40"),
    ],
)
def test_what_is_wrong_with_a_profile_is_named_with_its_file(config: Path, text: str, says: str) -> None:
    config.write_text(text if text.startswith("default") else f"default = 'prod'\n{text}")
    with pytest.raises(ValueError, match=says) as raised:
        Access.chosen(None)
    assert str(config) in str(raised.value)


def test_a_file_of_profiles_that_others_can_write_is_refused(config: Path) -> None:
    config.chmod(0o620)
    with pytest.raises(ValueError, match=f"{config} can be written by others: chmod 600 {config}"):
        Access.chosen(None)
    config.chmod(0o644)
    assert Access.chosen(None).endpoint == "tcp://prod:1"


def test_the_mode_of_a_file_is_that_of_what_is_read(config: Path) -> None:
    # Given a file that others can write, which is replaced by a good one once it is open
    config.chmod(0o620)
    good = secret_file(config.with_name("good"), PROFILES)

    def opened(*how: Any) -> Any:
        file = open(*how)  # noqa: PTH123, SIM115
        good.replace(config)
        return file

    with pytest.raises(ValueError, match="can be written by others"):
        _read(str(config), opened)


def test_a_profile_with_a_password_is_for_its_owner_alone(config: Path) -> None:
    config.write_text("[profiles.prod]\nendpoint = 'tcp://prod:1'\nuser = 'ann'\npassword = 's3cret'\n")
    assert Access.chosen(None, {"profile": "prod"}).password == "s3cret"  # noqa: S105
    config.chmod(0o640)
    with pytest.raises(ValueError, match="has a password, and others can read it: chmod 600") as raised:
        Access.chosen(None, {"profile": "prod"})
    assert "s3cret" not in str(raised.value)


def test_a_password_file_that_others_can_read_is_refused(config: Path) -> None:
    (config.parent / "dev.password").chmod(0o644)
    with pytest.raises(ValueError, match="profile dev: password_file: others can read the password file"):
        Access.chosen(None, {"profile": "dev"})


def test_a_libzmq_without_curve_is_named() -> None:
    with pytest.raises(ValueError, match=r"libzmq 4\.[0-9.]+ was built without CURVE: that of the wheels"):
        _of_curve([], has={"curve": False}.__getitem__)


def test_a_secret_is_in_no_repr(config: Path) -> None:
    access = Access.chosen(None)
    assert access.keys is not None
    assert repr(access.keys.secret) not in repr(access)
    assert "of-dev" not in repr(Access.chosen(None, {"profile": "dev"}))


def test_without_any_of_it_all_is_as_before(broker: ScriptedBroker) -> None:
    with Client(timeout=SECONDS, endpoint=broker.endpoint) as client:
        client.ping()
