"""Settings that are secrets, in files of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluicemq.protocol.secret_files import read_secret
from sluicemq_broker.config import Config, ConfigError, as_json, describe, load

URI = "mongodb://bob:hunter2@db.example.com/?replicaSet=rs0"
REDIS = "redis://:hunter2@cache.example.com:6379/0"
EACH = {"mongodb_uri": URI, "http_token": "hunter2-hunter2-hunter2", "event_bus": REDIS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file for each secret, with a line end as editors make it."""
    for name, text in EACH.items():
        write(tmp_path / name, text + "\n")
    return tmp_path


def test_all_are_read_from_their_files_without_the_line_end(folder: Path) -> None:
    config = given(folder, {f"{name}_file": str(folder / name) for name in EACH})
    assert {name: getattr(config.broker, name).text for name in EACH} == EACH


def test_the_path_may_be_in_the_environment_and_be_a_flag(folder: Path) -> None:
    environ = {"SLUICEMQ_HTTP_TOKEN_FILE": str(folder / "http_token")}
    config = load(None, environ, {"mongodb_uri_file": str(folder / "mongodb_uri")})
    assert config.broker.http_token
    assert config.broker.http_token.text == EACH["http_token"]
    assert config.broker.mongodb_uri
    assert config.broker.mongodb_uri.text == URI


@pytest.mark.parametrize("name", EACH)
def test_a_secret_and_its_file_are_too_much_wherever_they_are(folder: Path, name: str) -> None:
    environ = {f"SLUICEMQ_{name.upper()}": EACH[name]}
    refusal = refused(folder, {f"{name}_file": str(folder / name)}, environ)
    assert f"{name}_file: SLUICEMQ_{name.upper()} is given, too: keep one of them" in refusal


@pytest.mark.parametrize("name", EACH)
def test_what_is_wrong_in_a_file_is_told_with_its_name_and_without_its_text(folder: Path, name: str) -> None:
    write(folder / name, f"wrong hunter2 {'ü' * 300}\n")
    refusal = refused(folder, {f"{name}_file": str(folder / name)})
    assert f"{name}_file: expected in {folder / name} " in refusal


def test_a_missing_file_is_named(folder: Path) -> None:
    refusal = refused(folder, {"mongodb_uri_file": str(folder / "nowhere")})
    assert f"mongodb_uri_file: can't read the file {folder / 'nowhere'}: No such file" in refusal


def test_a_file_that_others_can_read_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / "http_token").chmod(0o640)
    refusal = refused(folder, {"http_token_file": str(folder / "http_token")})
    assert f"chmod 600 {folder / 'http_token'}" in refusal


def test_a_uri_in_the_place_of_its_file_is_refused_and_not_repeated(folder: Path) -> None:
    refused(folder, {"mongodb_uri_file": URI})


def test_the_shown_configuration_names_the_file_and_can_be_used_again(folder: Path) -> None:
    given_settings = {f"{name}_file": str(folder / name) for name in EACH}
    config = given(folder, given_settings)
    shown = folder / "shown.toml"
    shown.write_text(describe(config))
    assert "hunter2" not in shown.read_text() + str(as_json(config))
    assert load(shown, {}, {}).broker == config.broker


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that can't be written")
def test_everybody_may_read_a_secret_of_a_container(tmp_path: Path) -> None:
    write(tmp_path / "secret", "text")
    (tmp_path / "secret").chmod(0o444)
    found = os.statvfs(tmp_path)
    read_only = os.statvfs_result((*found[:8], found.f_flag | os.ST_RDONLY, found.f_namemax))
    assert read_secret(tmp_path / "secret", "file", lambda _descriptor: read_only) == "text"
    with pytest.raises(ValueError, match="others can read"):
        read_secret(tmp_path / "secret", "file", lambda _descriptor: found)


def given(folder: Path, broker: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Config:
    file = folder / "broker.toml"
    file.write_text("[broker]\n" + "".join(f"{key} = '{value}'\n" for key, value in broker.items()))
    return load(file, environ or {}, {})


def refused(folder: Path, broker: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as refusal:
        given(folder, broker, environ)
    assert "hunter2" not in str(refusal.value)
    return str(refusal.value)


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
