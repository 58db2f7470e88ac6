"""Terms of an end: the mechanisms that it speaks, and the keys and names that it uses."""

from __future__ import annotations

from sluicemq_devices.zmtp.credentials import CURVE, NULL, PLAIN


class Terms:
    """Mechanisms and keys of one end; these are NULL and none.

    An end that dials is a client. Its server must answer with the mechanism of the client: CURVE if there is
    a ``server_key``, PLAIN if there is a ``user``, else NULL.
    """

    mechanisms: frozenset[str] = frozenset({NULL})
    """Mechanisms that an end which binds speaks."""
    secret_key: bytes = b""
    """Permanent secret key of CURVE of this end, 32 bytes; empty: a client makes one for each connection."""
    server_key: bytes = b""
    """Permanent public key of the server that is dialled."""
    user: str = ""
    password: str = ""

    def spoken(self, *, dials: bool) -> list[str]:
        """Return the mechanisms that are spoken, the first one first: that of peers which wait for ours."""
        if dials:
            return [CURVE if self.server_key else PLAIN if self.user else NULL]
        return [name for name in (NULL, PLAIN, CURVE) if name in self.mechanisms]


NULL_TERMS = Terms()
