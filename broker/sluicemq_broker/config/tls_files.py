"""Certificate and key of the HTTP door, in files of PEM."""

from __future__ import annotations

import ssl
from pathlib import Path

from sluicemq.protocol.secret_files import read_secret

#: A context of any kind: gevent has one of its own.
Context = ssl.SSLContext


def load_certificate(context: Context, certificate: Path, key: Path) -> Context:
    """Let a context use a certificate, with TLS 1.2 or newer; returns it.

    Raises ValueError, which says what is wrong with the files.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    _require_readable(certificate)
    read_secret(key, "key")
    try:
        context.load_cert_chain(certificate, key, password=_refuse_to_ask)
    except _Encrypted:
        raise ValueError(f"{key} is encrypted: its password can't be given") from None
    except ssl.SSLError as error:
        reason = error.reason or "no certificate and key in PEM"
        raise ValueError(f"{certificate} and {key}: {reason.replace('_', ' ').lower()}") from None
    return context


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise ValueError unless a door could use these files."""
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


class _Encrypted(Exception):
    """A key needs a password; OpenSSL would ask for it on the terminal."""


def _refuse_to_ask() -> str:
    raise _Encrypted


def _require_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
