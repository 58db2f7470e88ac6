"""The certificate of the HTTP door: what is wrong with it is named before a broker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from sluicemq_broker.config import ConfigError, load
from support.certificates import Authority, Certificate


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    return Authority(tmp_path).certificate("127.0.0.1")


def problem(tmp_path: Path, **settings: Path | str) -> str:
    """What is wrong with these settings of [broker]; empty: nothing."""
    file = tmp_path / "broker.toml"
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    file.write_text("\n".join(["[broker]", *lines]))
    try:
        load(file, {}, {})
    except ConfigError as error:
        return "; ".join(str(each) for each in error.problems)
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


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, made: Certificate
) -> None:
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


def test_an_encrypted_key_is_refused_and_nothing_is_asked_on_the_terminal(
    tmp_path: Path, made: Certificate
) -> None:
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made.key.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    assert "is encrypted" in problem(tmp_path, http_tls_cert=made.chain, http_tls_key=made.key)
