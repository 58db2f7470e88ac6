"""``deploy/install``: its arguments, the configuration it writes, the units for systemd."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sluicemq.protocol.keys import KeyPair, encode, write_key_file
from sluicemq_broker.config import (
    BrokerSettings,
    Config,
    QueueSettings,
    StreamSettings,
    load,
    problems_of_exposure,
    settings_of,
)
from sluicemq_broker.config.loading import usual_data_folder

INSTALL = Path(__file__).resolve().parents[2] / "deploy" / "install"


def install(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "SYSTEMCTL"}
    return subprocess.run([INSTALL, *words], env=environ, capture_output=True, text=True, check=False)


def test_its_help_has_every_option() -> None:
    shown = install("--help").stdout
    text = INSTALL.read_text().split("read_arguments()")[1].split("esac\n        shift")[0]
    options = {word for word in text.replace("|", " ").replace(")", " ").split() if word.startswith("--")}
    assert len(options) > 8
    assert {option for option in options if option not in shown} <= {"--help"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--frobnicate"], "there is no option --frobnicate"),
        (["--wheels"], "--wheels needs a value"),
        (["--version", ""], "--version needs a value"),
    ],
)
def test_wrong_usage_is_named_and_shows_the_right_one(words: list[str], says: str) -> None:
    done = install(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"deploy/install: {says}\n")
    assert "--rollback" in done.stderr


def test_the_keys_of_another_host_have_to_be_there_and_to_be_those_of_this_host(tmp_path: Path) -> None:
    keys, host = tmp_path / "keys", tmp_path / "host"
    keys.mkdir()
    words = ("--root", str(host), "--embedded", "--keys", str(keys))
    # When one is missing
    (keys / "secret.key").write_text("secret")
    missing = install(*words)
    assert missing.returncode == 1
    assert f"{keys} has no client.key: copy it from /etc/sluicemq of the first host" in missing.stderr
    # And when this host has another one
    (keys / "client.key").write_text("client")
    (host / "etc" / "sluicemq").mkdir(parents=True)
    (host / "etc" / "sluicemq" / "secret.key").write_text("other")
    other = install(*words)
    assert other.returncode == 1
    assert f"secret.key is another key than {keys}/secret.key" in other.stderr
    assert not (host / "opt").exists()


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="this host runs systemd")
def test_a_host_without_systemd_is_refused() -> None:
    done = install("--embedded")
    assert done.returncode == 1
    wanted = "does not run systemd" if os.geteuid() == 0 else "only root can"
    assert wanted in done.stderr


def test_a_first_installation_has_to_name_a_mongodb(tmp_path: Path) -> None:
    done = install("--root", str(tmp_path / "host"))
    assert done.returncode == 2
    assert "say --mongodb-uri URI, or --embedded" in done.stderr
    assert not (tmp_path / "host" / "opt").exists()


DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TEXT = (DEPLOY / "sluicemq.toml").read_text()
#: A setting that stands there in comments.
SHOWN = re.compile(r"^#[a-z_]+ = .*", re.MULTILINE)
TABLES: dict[str, tuple[type, str]] = {
    "[broker]": (BrokerSettings, "broker"),
    '[queues."*"]': (QueueSettings, "other_queues"),
    '[streams."*"]': (StreamSettings, "other_streams"),
}
PAIR = KeyPair(bytes(range(32)), bytes(range(100, 132)))


def read(folder: Path, text: str) -> Config:
    write_key_file(folder / "secret.key", PAIR)
    file = folder / "sluicemq.toml"
    key = str(folder / "secret.key")
    file.write_text(text.replace("/etc/sluicemq/secret.key", key).replace("@ADMIN_KEY@", encode(PAIR.public)))
    return load(file, {}, {})


def test_it_is_valid_and_has_the_doors_of_a_broker_without_one(tmp_path: Path) -> None:
    config = read(tmp_path, TEXT)
    assert config.broker == load(None, {}, {}).broker
    assert not problems_of_exposure(config)
    assert "admin" in config.principals


def test_other_machines_do_not_get_in_by_opening_a_door_alone(tmp_path: Path) -> None:
    opened = TEXT.replace('#endpoint = "@tcp://127.0.0.1:5550"', 'endpoint = "@tcp://*:5550"')
    assert opened != TEXT
    assert problems_of_exposure(read(tmp_path, opened))


@pytest.mark.parametrize("table", TABLES)
def test_what_stands_in_comments_is_a_setting_with_its_default(tmp_path: Path, table: str) -> None:
    # Given what a table shows
    part = TEXT.split(table)[1].split("\n[")[0].split("\n#[")[0]
    lines = SHOWN.findall(part)
    assert lines
    kind, attribute = TABLES[table]
    defaults = {key: setting.default for key, setting in settings_of(kind).items()}
    # When all of it holds, but for examples of what has no default
    held = [line[1:] for line in lines if defaults[line[1:].split()[0]] not in (None, ())]
    (tmp_path / "all.toml").write_text("\n".join([table, *held]))
    # Then nothing is otherwise
    found, default = (getattr(load(file, {}, {}), attribute) for file in (tmp_path / "all.toml", None))
    assert found == default


@pytest.mark.parametrize(
    ("file", "folder"), [("sluicemq.toml", "/var/lib/sluicemq"), ("second.toml", "/var/lib/sluicemq/second")]
)
def test_its_data_are_found_by_its_file_where_its_unit_has_them(file: str, folder: str) -> None:
    found = usual_data_folder(f"/etc/sluicemq/{file}", {})
    unit = "sluicemq@" if file != "sluicemq.toml" else "sluicemq"
    text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
    assert str(found) == folder
    assert f"SLUICEMQ_DATA_DIR={folder.replace('second', '%i')}\n" in text


def test_another_file_has_the_folder_of_its_user(tmp_path: Path) -> None:
    assert usual_data_folder("None", {}) == usual_data_folder(str(tmp_path / "sluicemq.toml"), {})


ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
#: The exposure, from 0 to 10 and in tenths, up to which the sandbox is closed enough.
MOST = "25"


@pytest.fixture
def analyze() -> str:
    """The program that judges units."""
    found = shutil.which("systemd-analyze")
    if not found:
        pytest.skip("there is no systemd-analyze")
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(analyze: str, tmp_path: Path, unit: Path) -> None:
    # Given all units, with programs that are here
    for file in UNITS:
        text = re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", file.read_text(), flags=re.MULTILINE)
        (tmp_path / file.name).write_text(text)
    name = unit.name.replace("@.", "@second.")
    (tmp_path / name).write_text((tmp_path / unit.name).read_text())
    done = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / name], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line]
    assert about_it == []


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_service_reaches_little_of_its_host(analyze: str, unit: Path) -> None:
    done = subprocess.run(
        [analyze, "security", "--offline=true", f"--threshold={MOST}", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_broker_differs_by_its_name_alone() -> None:
    one, many = (ROOT / "deploy/systemd" / name for name in ("sluicemq.service", "sluicemq@.service"))
    named = many.read_text().replace("%i.toml", "sluicemq.toml").replace("/%i", "").replace(" (%i)", "")
    assert named == one.read_text()
