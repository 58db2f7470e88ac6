"""Credentials that a peer shows in its handshake."""

from __future__ import annotations

from dataclasses import dataclass, field

NULL, PLAIN, CURVE = "NULL", "PLAIN", "CURVE"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A mechanism, and what the peer has shown by it.

    ``key``: its permanent public key of CURVE, 32 bytes; ``user`` and ``password``: of PLAIN.
    """

    mechanism: str
    key: bytes = b""
    user: str = ""
    password: str = field(default="", repr=False)
