"""The mechanism CURVE (CurveZMQ, ZeroMQ RFC 25 and 26): both sides show their keys, and all is encrypted.

Permanent keys are C, c of the client and S, s of the server; C', c' and S', s' are made for one connection.
Box[x](A->B) can be made with the secret key of A or B, and opened with the other one::

    HELLO     1.0, 72 zeros, C', nonce, Box[64 zeros](C'->S)
    WELCOME   nonce, Box[S' + cookie](S->C')            cookie: nonce, Secretbox[C' + s'](key of the server)
    INITIATE  cookie, nonce, Box[C + vouch + properties](C'->S')       vouch: nonce, Box[C' + S](C->S')
    READY     nonce, Box[properties](S'->C')
    MESSAGE   nonce, Box[flags + body](C'->S' or S'->C')               flags: 1 more, 2 command

Nonces of HELLO, INITIATE, READY and MESSAGE have 8 bytes and rise with each box of a side; the others have 16
random bytes. PyNaCl does the cryptography; it is imported with the first side that is made, or by
:func:`load`.
"""

from __future__ import annotations

from sluicemq_devices.zmtp.mechanism import Mechanism


def load() -> None:
    """Import PyNaCl, which takes some ten milliseconds; raises Unavailable if it is not installed."""
    from sluicemq_devices.zmtp.curve import sodium  # noqa: PLC0415 - an extra


def curve_server(metadata: bytes, most_bytes: int, secret_key: bytes) -> Mechanism:
    """Return the server's side.

    ``most_bytes``: of one frame or command that is received. ``secret_key``: permanent, 32 bytes.
    Raises Unavailable if PyNaCl is not installed.
    """
    from sluicemq_devices.zmtp.curve.server import CurveServer  # noqa: PLC0415 - an extra

    return CurveServer(metadata, most_bytes, secret_key)


def curve_client(metadata: bytes, most_bytes: int, secret_key: bytes, server_key: bytes) -> Mechanism:
    """Return the client's side; ``server_key``: permanent public key of the server, 32 bytes.

    The other arguments are those of :func:`curve_server`. Raises Unavailable if PyNaCl is not installed.
    """
    from sluicemq_devices.zmtp.curve.client import CurveClient  # noqa: PLC0415 - an extra

    return CurveClient(metadata, most_bytes, secret_key, server_key)
