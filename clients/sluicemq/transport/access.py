"""Access to a broker: its endpoint, and the key or password by which a client gets in there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import zmq

from sluicemq import arguments
from sluicemq.protocol.keys import KeyPair, encode
from sluicemq.transport.credentials import AccessOptions, checked, credentials
from sluicemq.transport.sources import endpoint_of, sources_of

NULL: Final = "NULL"
PLAIN: Final = "PLAIN"
CURVE: Final = "CURVE"


@dataclass(frozen=True, slots=True)
class Access:
    """An endpoint, and by what a client gets in there; :meth:`chosen` makes it.

    ``keys`` and ``server_key`` are for CURVE, ``user`` and ``password`` for PLAIN. A ``server_key`` without
    ``keys`` encrypts for a client that stays anonymous.
    """

    endpoint: str
    keys: KeyPair | None = None
    server_key: bytes = b""
    user: str = ""
    password: str = field(default="", repr=False)

    @staticmethod
    def chosen(
        broker: Broker, options: AccessOptions | None = None, ask: Callable[[str], str] | None = None
    ) -> Access:
        """Choose from keywords, environment and profile; ``ask(user)`` returns a password that none has.

        Raises ValueError, which names the place of what is wrong, and TypeError.
        """
        given = checked(options or {})
        if isinstance(broker, Access):
            if given:
                raise TypeError(f"an Access has all that is needed; leave out {', '.join(given)}")
            return broker
        if broker is not None:
            arguments.text("endpoint", broker)
        sources = sources_of(broker, given)
        return Access(endpoint_of(broker, sources), *credentials(sources, ask))

    @property
    def mechanism(self) -> str:
        """Return the mechanism of ZMTP by which the client gets in."""
        return CURVE if self.server_key else PLAIN if self.user else NULL

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Set the options of a socket that is to be connected."""
        if self.server_key:
            socket.curve_publickey, socket.curve_secretkey = self._pair()
            socket.curve_serverkey = encode(self.server_key).encode()
        elif self.user:
            socket.plain_username = self.user.encode()
            socket.plain_password = self.password.encode()

    def _pair(self) -> tuple[bytes, bytes]:
        """Return public and secret key; without one of its own, a pair that nobody knows."""
        if self.keys is None:
            return zmq.curve_keypair()
        return encode(self.keys.public).encode(), encode(self.keys.secret).encode()


#: Where a broker is: its endpoint, or a whole access; None: as environment and profile say.
Broker: TypeAlias = str | Access | None
