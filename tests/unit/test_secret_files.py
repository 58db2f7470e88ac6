"""Files with secrets: settings, the certificate of the HTTP door, keys of CURVE."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import zmq
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from sluicemq.protocol.keys import (
    KeyPair,
    decode,
    encode,
    key_file,
    key_id,
    read_key,
    read_key_file,
    write_key_file,
)
from sluicemq.protocol.secret_files import others_may, read_secret
from sluicemq_broker.config import Config, ConfigError, as_json, describe, load, validity
from support.certificates import Authority, Certificate

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
    config = configured(folder, {f"{name}_file": str(folder / name) for name in EACH})
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
    config = configured(folder, given_settings)
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


def configured(
    folder: Path, broker: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> Config:
    file = folder / "broker.toml"
    file.write_text("[broker]\n" + "".join(f"{key} = '{value}'\n" for key, value in broker.items()))
    return load(file, environ or {}, {})


def refused(folder: Path, broker: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as refusal:
        configured(folder, broker, environ)
    assert "hunter2" not in str(refusal.value)
    return str(refusal.value)


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    return Authority(tmp_path).certificate("127.0.0.1")


def problem(tmp_path: Path, **settings: Path | str) -> str:
    """What is wrong with these settings of [broker]; empty: nothing."""
    try:
        configured(tmp_path, settings)
    except ConfigError as error:
        return "; ".join(str(found) for found in error.problems)
    return ""


def test_a_certificate_and_its_key_are_taken(tmp_path: Path, made: Certificate) -> None:
    assert problem(tmp_path, http_tls_cert=made.chain, http_tls_key=made.key) == ""
    assert problem(tmp_path, http_tls_cert=made.both, http_tls_key=made.both) == ""


def test_one_without_the_other_is_refused(tmp_path: Path, made: Certificate) -> None:
    assert "needed both" in problem(tmp_path, http_tls_cert=made.chain)
    assert "needed both" in problem(tmp_path, http_tls_key=made.key)


def test_a_file_that_is_not_there_is_named(tmp_path: Path, made: Certificate) -> None:
    missing = tmp_path / "nosuch.pem"
    assert f"{missing} can't be read" in problem(tmp_path, http_tls_cert=missing, http_tls_key=made.key)
    assert f"{missing}: No such file" in problem(tmp_path, http_tls_cert=made.chain, http_tls_key=missing)


def test_a_key_others_can_read_is_refused_with_its_mending(tmp_path: Path, made: Certificate) -> None:
    made.key.chmod(0o644)
    assert f"chmod 600 {made.key}" in problem(tmp_path, http_tls_cert=made.chain, http_tls_key=made.key)


def test_the_key_of_another_certificate_is_refused(tmp_path: Path, made: Certificate) -> None:
    other = Authority(tmp_path, "other-ca").certificate("127.0.0.1", name="other")
    assert "mismatch" in problem(tmp_path, http_tls_cert=made.chain, http_tls_key=other.key)


def test_a_text_that_is_no_certificate_is_refused(tmp_path: Path, made: Certificate) -> None:
    made.chain.write_text("no certificate")
    assert f"{made.chain} and {made.key}: " in problem(
        tmp_path, http_tls_cert=made.chain, http_tls_key=made.key
    )


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path, made: Certificate) -> None:
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made.key.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    assert "is encrypted" in problem(tmp_path, http_tls_cert=made.chain, http_tls_key=made.key)


@pytest.mark.parametrize("days", [1.5, 400.0, 365.0 * 40])  # before and after 2050 dates have two forms
def test_the_dates_of_a_certificate_are_read_as_openssl_reads_them(tmp_path: Path, days: float) -> None:
    made = Authority(tmp_path).certificate("127.0.0.1", days=days)
    theirs = x509.load_pem_x509_certificate(made.chain.read_bytes())
    ours = validity(made.chain)
    assert ours is not None
    assert ours.begins == theirs.not_valid_before_utc.timestamp()
    assert ours.ends == theirs.not_valid_after_utc.timestamp()
    assert validity(made.both) == ours, "its key stands before it"


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"]
)
def test_dates_that_can_not_be_read_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.pem"
    file.write_text(text)
    assert validity(file) is None


PAIR = KeyPair(bytes(range(32)), bytes(range(100, 132)))


@given(st.lists(st.binary(min_size=4, max_size=4)).map(b"".join))
def test_z85_is_that_of_libzmq(data: bytes) -> None:
    assert encode(data) == z85.encode(data).decode()
    assert decode(encode(data)) == data


def test_the_example_of_the_rfc() -> None:
    assert encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


@pytest.mark.parametrize("text", ["1234", "12 45", "12,45", "#####", "ääääää"])
def test_a_text_that_is_no_z85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no text in Z85"):
        decode(text)


@pytest.mark.parametrize("text", ["", "secret", "s" * 39, "s" * 41, "," * 40, 40, None])
def test_a_key_that_is_none_is_refused_and_not_repeated(text: object) -> None:
    with pytest.raises(ValueError, match=r"^a key of 40 characters in Z85$"):
        read_key(text)


def test_keys_of_libzmq_can_be_read() -> None:
    public, secret = zmq.curve_keypair()
    assert encode(read_key(public.decode())).encode() == public
    assert encode(read_key(secret.decode())).encode() == secret


def test_a_key_file_is_for_its_owner_alone_and_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    before = os.umask(0)
    try:
        write_key_file(file, PAIR)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key_file(file) == PAIR
    assert file.read_text().startswith("# Key pair of SluiceMQ")


def test_no_key_file_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    write_key_file(file, PAIR)
    with pytest.raises(FileExistsError):
        write_key_file(file, KeyPair(bytes(32), bytes(32)))
    assert read_key_file(file) == PAIR


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666])
def test_a_key_file_that_others_can_read_is_refused_with_what_mends_it(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "worker.key"
    write_key_file(file, PAIR)
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"others can read the key file {file}: chmod 600 {file}"):
        read_key_file(file)


@pytest.mark.parametrize(
    ("owner", "group", "mode", "others"),
    [
        (1000, 1000, 0o660, False),  # the group is the owner's own, as a Pod has it
        (1000, 4242, 0o660, False),  # a supplementary group of this process: fsGroup
        (0, 4242, 0o440, False),  # a Secret with fsGroup
        (1000, 4242, 0o664, True),
        (1000, 77, 0o640, True),  # a group of others
        (1000, 100, 0o640, True),  # this process's main group, which its other users have, too
        (1000, 0, 0o640, True),
    ],
)
def test_a_group_may_read_this_processs_secret(owner: int, group: int, mode: int, *, others: bool) -> None:
    found = os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))
    assert bool(others_may(found, groups=(100, 1000, 4242, 0), main=100)) is others


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("public_key", "no TOML"),
        (key_file(PAIR).replace("secret_key", "secret"), "needs secret_key = a key of 40 characters in Z85"),
        (key_file(PAIR).replace("public_key", "public"), "needs public_key = a key of 40 characters in Z85"),
        ('public_key = 1\nsecret_key = "planted-secret"', "needs public_key"),
        ("x" * 100_000, "longer than 65536 characters"),
    ],
)
def test_what_is_wrong_with_a_key_file_hides_its_secret(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "worker.key"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ValueError, match=says) as raised:
        read_key_file(file)
    assert str(file) in str(raised.value)
    assert encode(PAIR.secret) not in str(raised.value)
    assert "planted-secret" not in str(raised.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"can't read the key file {tmp_path}/none: No such file"):
        read_key_file(tmp_path / "none")


def test_the_secret_is_not_in_the_repr() -> None:
    assert repr(PAIR.secret) not in repr(PAIR)
    assert repr(PAIR.public) in repr(PAIR)


def test_a_key_has_a_short_name() -> None:
    assert key_id(bytes(32)) == "66687aadf862"
