"""Certificate and key of the HTTP door, in files of PEM."""

from __future__ import annotations

import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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


class Validity(NamedTuple):
    """The Unix seconds between which a certificate holds."""

    begins: float
    ends: float

    def problem(self, now: float | None = None) -> str:
        """Return what is wrong with the certificate at this time, or will be soon; "" if nothing is."""
        now = time.time() if now is None else now
        if now > self.ends:
            return f"has expired on {day(self.ends)}: clients that check it stay away"
        if now < self.begins:
            return f"holds from {day(self.begins)} on only: clients that check it stay away until then"
        return f"expires on {day(self.ends)}" if self.ends - now < 14 * 86_400.0 else ""


def validity(certificate: Path) -> Validity | None:
    """Return when the first certificate of a file of PEM holds; None if that can't be read."""
    try:
        text = certificate.read_text(errors="replace")
        whole = ssl.PEM_cert_to_DER_cert(
            text[text.index(ssl.PEM_HEADER) : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        )
        _tag, signed = _element(_element(whole)[1])  # tbsCertificate, RFC 5280, 4.1
        # The tag of ASN.1 for a version
        parts = [element for element in _elements(signed) if element[0] != 0xA0]
        _serial_number, _algorithm, _issuer, (_tag, dates), *_others = parts
        begins, ends = (_seconds(*element) for element in _elements(dates))
    except (OSError, ValueError, IndexError):
        return None
    return Validity(begins, ends)


def day(seconds: float) -> str:
    """Return the day and minute of Unix seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _elements(content: bytes) -> list[tuple[int, bytes]]:
    """Return the elements of DER, one behind the other: tag and content."""
    found = []
    while content:
        size, head = content[1], 2
        if size & 0x80:
            head += size & 0x7F
            size = int.from_bytes(content[2:head])
        found.append((content[0], content[head : head + size]))
        content = content[head + size :]
    return found


def _element(content: bytes) -> tuple[int, bytes]:
    return _elements(content)[0]


def _seconds(tag: int, text: bytes) -> float:
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"  # the tag of ASN.1 for a UTC time
    return datetime.strptime(text.decode(), form).replace(tzinfo=UTC).timestamp()


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
