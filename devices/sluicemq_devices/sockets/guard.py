"""Guards of doors: the mechanisms that a door speaks, and who gets in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluicemq_devices.zmtp import NULL, Credentials

#: Takes the decision about a peer: who it is for the door's owner, and why it does not get in, or "".
Decide = Callable[[Any, str], None]


class Guard:
    """A door's rule; this one speaks NULL and lets everybody in.

    ``mechanisms``: spoken by the door. ``secret_key``: its own permanent key of CURVE, 32 bytes.
    ``server_key``: where the door dials, the permanent public key of the server there.
    ``user``, ``password``: where the door dials, what it shows by PLAIN.
    """

    mechanisms: frozenset[str] = frozenset({NULL})
    secret_key: bytes = b""
    server_key: bytes = b""
    user: str = ""
    password: str = ""

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        """Decide about a peer, now or later; ``decide(who, why)`` is called once.

        ``peer``: its address. ``who`` becomes the ``who`` of its connection.
        """
        del credentials, peer
        decide(None, "")


OPEN = Guard()
