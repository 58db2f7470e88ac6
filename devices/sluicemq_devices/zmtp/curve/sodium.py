"""libsodium through PyNaCl, which the extra ``curve`` installs; importing it raises Unavailable else.

``seal(data, nonce, key)`` and ``unseal(box, nonce, key)`` are XSalsa20 and Poly1305, with checks of all
lengths: for handshakes. ``Boxes`` are those of the traffic of a connection, at half of the cost.
"""

from __future__ import annotations

from sluicemq.installed import to_install
from sluicemq.protocol.errors import UnavailableError

try:
    from nacl.bindings import crypto_box_afternm as seal
    from nacl.bindings import crypto_box_beforenm, randombytes
    from nacl.bindings import crypto_box_open_afternm as unseal
    from nacl.bindings import crypto_scalarmult_base as public_of
    from nacl.exceptions import CryptoError as Broken

    from sluicemq_devices.zmtp.curve.boxes import Boxes
except ImportError:
    raise UnavailableError(f"CURVE needs PyNaCl: {to_install('curve')}") from None

__all__ = ["BOX", "KEY", "Boxes", "Broken", "public_of", "randombytes", "seal", "shared_key", "unseal"]

#: Bytes of a key, and those that a box has beyond its data.
KEY, BOX = 32, 16


def shared_key(public: bytes, secret: bytes) -> bytes:
    """Return the key of boxes between two sides.

    Raises Broken for a public key with which it would be known to anybody, and for one with its highest bit
    set: X25519 ignores that bit, so that one key would have two names.
    """
    if public[-1] & 0x80:
        raise Broken("a public key with its highest bit set")
    return crypto_box_beforenm(public, secret)
