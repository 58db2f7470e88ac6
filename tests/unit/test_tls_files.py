"""The certificate of the HTTP door: what is wrong with it is named before a broker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sluicemq_broker.config import ConfigError, load, validity
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
