"""The handshake of one end: greetings, then the commands of a mechanism, up to a decision about the peer.

The greeting (:mod:`.greeting`) is sent in two parts, as libzmq does: first the version, and the mechanism
later. An end that binds waits for the mechanism of its peer, and names that one if it speaks it. An end that
dials names its own once the peer has sent its version. A peer that would leave without a word when it reads
ours has named by then the mechanism that it wants, or the older ZMTP that it speaks.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sluicemq.protocol.keys import KEY_BYTES
from sluicemq_devices.zmtp.credentials import CURVE, NULL, PLAIN, Credentials
from sluicemq_devices.zmtp.curve import curve_client, curve_server
from sluicemq_devices.zmtp.frames import COMMAND, LONG, command, short
from sluicemq_devices.zmtp.greeting import (
    GREETING_SIZE,
    VERSION,
    choice,
    mechanism_of,
    minor_of,
    not_spoken,
    offered_by,
    ready_property,
)
from sluicemq_devices.zmtp.mechanism import Mechanism, Traffic
from sluicemq_devices.zmtp.null import Null
from sluicemq_devices.zmtp.plain import PlainClient, PlainServer
from sluicemq_devices.zmtp.terms import Terms

_LONGEST_IDENTITY = 255
_LONGEST_COMMAND = 8192  # bytes

_PARTNERS = {
    "DEALER": (b"REP", b"DEALER", b"ROUTER"),
    "ROUTER": (b"REQ", b"DEALER", b"ROUTER"),
    "PULL": (b"PUSH",),
    "PUSH": (b"PULL",),
    "XPUB": (b"SUB", b"XSUB"),
    "XSUB": (b"PUB", b"XPUB"),
}
_WITH_IDENTITY = ("DEALER", "ROUTER")


class Handshake:
    """Reads what the peer sends until both sides are through, and says what belongs to it.

    Once ``error`` is set, nothing more is read: the connection must be cut. Once ``credentials`` are set,
    nothing more is read until :meth:`decide`.
    """

    __slots__ = (
        "_dials",
        "_greeting",
        "_heard",
        "_kind",
        "_mechanism",
        "_most_bytes",
        "_named",
        "_say",
        "_terms",
        "error",
        "failed",
        "identity",
        "is_decided",
        "minor",
        "peer_kind",
    )

    def __init__(
        self, kind: str, most_bytes: int, say: Callable[[bytes], None], terms: Terms, *, dials: bool
    ) -> None:
        """``kind``: type of this end's socket; ``most_bytes``: limit of a frame; ``say``: sends bytes."""
        self.error = ""
        """Reason why the connection must be cut, for the log."""
        self.failed = False
        """True if the mechanism found that reason: keys or names that don't fit."""
        self.is_decided = False
        self.identity = b""
        """Routing id that the peer has announced, or empty."""
        self.peer_kind = b""
        """Type of the peer's socket."""
        self.minor = 0
        """Minor version of ZMTP 3 that the peer has announced."""
        self._kind = kind
        self._most_bytes = most_bytes
        self._say = say
        self._terms = terms
        self._dials = dials
        self._greeting = b""
        self._heard = b""  # behind the greeting: an incomplete command, or what waits for a decision
        self._named = ""  # the mechanism that our greeting has named
        self._mechanism: Mechanism | None = None

    @property
    def done(self) -> bool:
        """True once both sides are through: what follows are frames."""
        return self._mechanism is not None and self._mechanism.done and not self.error

    @property
    def credentials(self) -> Credentials | None:
        """Credentials of the peer that wait for :meth:`decide`."""
        mechanism = self._mechanism
        return None if mechanism is None or self.is_decided or self.error else mechanism.credentials

    @property
    def traffic(self) -> Traffic | None:
        """Encryption of what follows; None: frames go as they are."""
        return self._mechanism.traffic if self._mechanism else None

    @property
    def late(self) -> str:
        """Reason for cutting the peer when the time for its handshake is over."""
        if self.credentials:
            return "no handshake in time: whether it gets in was not decided"
        if self._mechanism:
            return f"no handshake in time: the {self._mechanism.awaited} command is missing"
        return (
            "it never finished its ZMTP greeting"
            if self._greeting
            else "it sent nothing in the time for a handshake"
        )

    @property
    def offered(self) -> str:
        """Description of what came of an unfinished handshake; empty if nothing did."""
        mechanism = self._mechanism
        text = offered_by(self._greeting, mechanism.awaited if mechanism else "READY")
        if self._dials and mechanism and mechanism.name == CURVE:
            text += ": the server key that is configured may be another one's"
        return text

    def greet(self) -> None:
        """Send the first part of the greeting; call this first."""
        self._say(VERSION)

    def greet_on(self) -> None:
        """Name our first mechanism, if none was named yet: the peer may wait for our whole greeting."""
        if not self._named:
            self._name(self._terms.spoken(dials=self._dials)[0])

    def take(self, data: bytes) -> bytes:
        """Read the next bytes; return those that follow the handshake once it is done."""
        self._heard += data
        if not self._mechanism:
            self._read_greeting()
        mechanism = self._mechanism
        while mechanism and not (self.error or self.done or self.credentials):
            body = self._command(mechanism)
            if body is None:
                break
            self._obey(mechanism, body)
        if not self.done:
            return b""
        rest, self._heard = self._heard, b""
        return rest

    def decide(self, why: str) -> None:
        """Admit the peer, or refuse it for a reason; then :meth:`take` goes on with what came meanwhile."""
        if self._mechanism:
            self.is_decided = True
            self.error = why
            self._send(self._mechanism.decide(why))

    # -------------------------------------------------------------- greeting

    def _read_greeting(self) -> None:
        size = GREETING_SIZE - len(self._greeting)
        self._greeting, self._heard = self._greeting + self._heard[:size], self._heard[size:]
        self.error = not_spoken(self._greeting)
        if self.error:
            return
        if self._dials and len(self._greeting) >= len(VERSION):
            self.greet_on()
        wanted = mechanism_of(self._greeting)
        if wanted is not None:
            self._answer(wanted)
        if len(self._greeting) == GREETING_SIZE and not self.error:
            self._begin()

    def _answer(self, wanted: bytes) -> None:
        """Name the mechanism that the peer has named, if it is spoken here."""
        spoken = self._terms.spoken(dials=self._dials)
        name = next((name for name in spoken if name.encode() == wanted), "")
        if not self._named:
            self._name(name or spoken[0])
        if name != self._named:
            names = f"only {spoken[0]} is" if len(spoken) == 1 else f"{', '.join(spoken)} are"
            self.error = f"no handshake: it wants the mechanism {wanted!r}, and {names} spoken here"
            if name:
                self.error += f", but {self._named} was named before it came"

    def _name(self, mechanism: str) -> None:
        self._named = mechanism
        self._say(choice(mechanism, as_server=mechanism != NULL and not self._dials))

    def _begin(self) -> None:
        self.minor = minor_of(self._greeting)
        self._mechanism = self._made()
        self._send(self._mechanism.begin())

    def _properties(self) -> bytes:
        properties = ready_property(b"Socket-Type", self._kind.encode())
        return properties + (ready_property(b"Identity", b"") if self._kind in _WITH_IDENTITY else b"")

    # -------------------------------------------------------------- commands

    def _command(self, mechanism: Mechanism) -> bytes | None:
        """Return the body of the next command; None if it has not come whole."""
        heard = self._heard
        start = 9 if heard and heard[0] & LONG else 2
        if len(heard) < start:
            return None
        length, awaited = int.from_bytes(heard[1:start]), mechanism.awaited
        if heard[0] & ~LONG != COMMAND:
            self.error = f"broken ZMTP: a frame with flags {heard[0]:#04x} where {awaited} belongs"
        elif length > _LONGEST_COMMAND:
            self.error = (
                f"a {awaited} command of {length} bytes, more than {_LONGEST_COMMAND}: a frame over the limit"
            )
        elif len(heard) >= start + length:
            self._heard = heard[start + length :]
            return heard[start : start + length]
        return None

    def _obey(self, mechanism: Mechanism, body: bytes) -> None:
        answer = mechanism.take(body)
        if mechanism.error:
            self.error, self.failed = mechanism.error, mechanism.name != NULL
        elif mechanism.properties is not None and (why := self._learn(mechanism.properties)):
            self.error = why
            answer = command(b"ERROR", short(why.encode()[:255]))
        self._send(answer)

    def _learn(self, properties: dict[bytes, bytes]) -> str:
        """Note what the peer says of itself; return why it does not fit."""
        kind, self.identity = properties.get(b"socket-type", b""), properties.get(b"identity", b"")
        if kind in _PARTNERS[self._kind] and len(self.identity) <= _LONGEST_IDENTITY:
            self.peer_kind = kind
            return ""
        names = b", ".join(_PARTNERS[self._kind]).decode()
        return f"it is a {kind[:24].decode(errors='replace')} socket, here is a {self._kind} for {names}"

    def _send(self, data: bytes) -> None:
        if data:
            self._say(data)

    def _made(self) -> Mechanism:
        """Return our side of the mechanism that was named."""
        metadata, most_bytes, terms, dials = self._properties(), self._most_bytes, self._terms, self._dials
        if self._named == NULL:
            return Null(metadata)
        if self._named == PLAIN:
            return PlainClient(metadata, terms.user, terms.password) if dials else PlainServer(metadata)
        if dials:
            secret_key = terms.secret_key or os.urandom(KEY_BYTES)
            return curve_client(metadata, most_bytes, secret_key, terms.server_key)
        return curve_server(metadata, most_bytes, terms.secret_key)
