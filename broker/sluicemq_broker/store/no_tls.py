"""Diagnosis of TLS that fails between the broker and a MongoDB: certificate, host name, authority."""

from __future__ import annotations

import socket
import ssl
from typing import Final
from urllib.parse import unquote_plus

from pymongo.uri_parser import parse_uri

from sluicemq_broker.config import MongoUri

_CERTIFICATE: Final = "the certificate of {host}"
_AUTHORITY: Final = "and tlsCAFile=FILE with its authority, unless this machine trusts that"
#: Words in an error of OpenSSL, and what they mean.
_CAUSES: Final = (
    ("has expired", f"{_CERTIFICATE} has expired: give that MongoDB a new one"),
    ("not yet valid", f"{_CERTIFICATE} is not valid yet: look at the clocks of both machines"),
    (
        "mismatch",
        f"{_CERTIFICATE} is for another name: write that into the URI, or give it one for this name",
    ),
    (
        "issuer certificate",
        f"{_CERTIFICATE} is signed by no authority that this broker trusts: tlsCAFile=FILE names one",
    ),
    ("revoked", f"{_CERTIFICATE} was revoked: give that MongoDB a new one"),
)


def why_no_tls(uri: MongoUri, host: str, error: Exception) -> str | None:
    """Return what is wrong with TLS to a host that did not answer, and what to do; None if TLS is not it.

    ``error``: the driver's, when it asked that host alone.
    """
    text = str(error).replace("self-signed certificate", "issuer certificate")
    for words, why in _CAUSES:
        if words in text and "certificate" in text:
            return why.format(host=host)
    options = {name.lower(): unquote_plus(value) for name, value in uri.parts.options}
    wants_tls = uri.text.startswith("mongodb+srv://") or "true" in (options.get("tls"), options.get("ssl"))
    spoken = _speaks_tls(host)
    if spoken is None:
        return None
    if wants_tls and spoken:
        return _of_ours(host, options)
    if wants_tls:
        return f"{host} speaks no TLS: leave tls=true out of the URI, or switch TLS on there (--tlsMode)"
    return f"{host} takes TLS only: write tls=true into the URI, {_AUTHORITY}" if spoken else None


def _of_ours(host: str, options: dict[str, str]) -> str | None:
    """Return what is wrong with the certificate that this broker shows, or does not."""
    file, authority = options.get("tlscertificatekeyfile"), options.get("tlscafile")
    if file is None:
        return (
            f"{host} closes the connection after the TLS handshake: as a rule it wants a certificate of this "
            "broker, tlsCertificateKeyFile=FILE (certificate and key, PEM)"
        )
    why = _verified(file, options.get("tlscertificatekeyfilepassword"), authority)
    said = f": {why}" if why else ""
    return (
        f"{host} closes the connection after the TLS handshake: it refuses the certificate of this broker in "
        f"{file}{said}"
    )


def _speaks_tls(host: str) -> bool | None:
    """Return whether a host speaks TLS; None if it can't be reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    (place,) = parse_uri(f"mongodb://{host}", validate=False, warn=False)["nodelist"]
    if place[1] is None:  # a Unix socket
        return None
    try:
        # Seconds for one host.
        with socket.create_connection(place, 2.0) as connection:
            try:
                context.wrap_socket(connection).close()
            except OSError:  # also ssl.SSLError
                return False
    except OSError:
        return None
    return True


def _verified(file: str, password: str | None, authority: str | None) -> str:
    """Return why a server that trusts this authority would refuse a certificate; empty if it would not.

    A handshake in memory, with the certificate at both ends, shows it: Python has no other way.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        for context in (server, client):
            context.load_cert_chain(file, password=password or "")
        server.load_verify_locations(authority) if authority else server.load_default_certs(
            ssl.Purpose.CLIENT_AUTH
        )
    except OSError as error:
        return str(error.strerror or error)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    # More than TLS needs
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            except ssl.SSLError as error:
                return str(error.reason or error)
    return ""
