"""The configuration that ``deploy/install`` writes: valid, and with the defaults of settings in comments."""

from __future__ import annotations

import re
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
