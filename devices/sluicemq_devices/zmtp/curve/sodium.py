"""libsodium's boxes through PyNaCl, which the extra ``curve`` installs; importing it raises Unavailable else.

``seal(data, nonce, key)`` and ``unseal(box, nonce, key)`` are XSalsa20 and Poly1305. They have zeros before
data and box, as NaCl has: these calls copy a memoryview once, the newer ones without zeros ("easy") can't
take it, and are slower for small boxes (2.6 us instead of 2.1 us to open 200 bytes).
"""

from __future__ import annotations

from sluicemq.installed import to_install
from sluicemq.protocol.errors import Unavailable

try:
    from nacl.bindings import crypto_box_afternm as seal
    from nacl.bindings import crypto_box_beforenm, randombytes
    from nacl.bindings import crypto_box_open_afternm as unseal
    from nacl.bindings import crypto_scalarmult_base as public_of
    from nacl.exceptions import CryptoError as Broken
except ImportError:
    raise Unavailable(f"CURVE needs PyNaCl: {to_install('curve')}") from None

__all__ = ["BOX", "KEY", "Broken", "public_of", "randombytes", "seal", "shared_key", "unseal"]

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
