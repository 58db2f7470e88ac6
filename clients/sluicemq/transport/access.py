"""Access to brokers: their endpoints, and the key or password by which a client gets in there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, TypeAlias

import zmq

from sluicemq.arguments import elsewhere
from sluicemq.protocol.keys import KeyPair, encode
from sluicemq.transport import endpoints
from sluicemq.transport.credentials import AccessOptions, checked, credentials
from sluicemq.transport.names import Resolve, addresses_of
from sluicemq.transport.sources import endpoints_of, sources_of

NULL: Final = "NULL"
PLAIN: Final = "PLAIN"
CURVE: Final = "CURVE"


@dataclass(frozen=True, slots=True)
class Access:
    """Endpoints, and by what a client gets in there; :meth:`chosen` makes it.

    Brokers at several endpoints share a store, and let the client in by one key or password.

    ``keys`` and ``server_key`` are for CURVE, ``user`` and ``password`` for PLAIN. A ``server_key`` without
    ``keys`` encrypts for a client that stays anonymous. ``resolve`` looks up names of hosts.
    """

    endpoints: tuple[str, ...]
    keys: KeyPair | None = None
    server_key: bytes = b""
    user: str = ""
    password: str = field(default="", repr=False)
    resolve: Resolve = field(default=addresses_of, repr=False, compare=False)

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
        named = None if broker is None else endpoints.checked(broker)
        sources = sources_of(named, given)
        return Access(endpoints_of(named, sources), *credentials(sources, ask))

    @staticmethod
    def at_start(broker: Broker, options: AccessOptions) -> Callable[[], Access]:
        """Check a choice, and return what makes it once more, by the environment when a program connects."""
        Access.chosen(broker, options)
        return partial(Access.chosen, broker, options)

    @property
    def endpoint(self) -> str:
        """Return the endpoints as one text, with commas between them."""
        return ",".join(self.endpoints)

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


#: Where brokers are: endpoints in a text or a list, or a whole access; None: as environment and profile say.
Broker: TypeAlias = Annotated[str | Iterable[str] | Access | None, elsewhere]
