"""Mechanisms of ZMTP 3 (ZeroMQ RFC 23): from the exchanged greetings to a connection that carries messages.

A mechanism is one side of a handshake. It reads the bodies of commands, returns the bytes to send, touches no
socket, never waits, and raises nothing for what a stranger sends.
"""

from __future__ import annotations

import abc
from typing import ClassVar, Final

from sluicemq_devices.zmtp.credentials import Credentials
from sluicemq_devices.zmtp.frames import command, short
from sluicemq_devices.zmtp.greeting import complaint, read_properties, split

#: ERROR command to a peer that does not get in; libzmq reports its code as a failed authentication.
REFUSAL: Final = command(b"ERROR", short(b"400"))


class Traffic(abc.ABC):
    """Encryption of a connection whose handshake is done; plain frames on this side, sealed ones on the wire.

    Once ``error`` is set, nothing more is opened: the connection must be cut.
    """

    __slots__ = ()

    error: str
    """Reason why the connection must be cut, for the log."""
    missing: int
    """Bytes of a large frame that have not come yet; give :meth:`open` no more than these at once."""
    held: int
    """Bytes of memory of an incomplete frame."""

    @abc.abstractmethod
    def encode(self, frames: list[bytes]) -> bytes:
        """Return a message as the bytes that are sent."""

    @abc.abstractmethod
    def seal(self, encoded: bytes) -> bytes:
        """Return encoded frames, of messages or commands, as the bytes that are sent."""

    @abc.abstractmethod
    def unseal(self, sealed: bytes) -> bytes:
        """Return the encoded frames that :meth:`encode` or :meth:`seal` of this side has sealed."""

    @abc.abstractmethod
    def open(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the encoded frames that are complete with these bytes; keep the rest.

        A memoryview: one large frame, in memory of its own.
        """


class Mechanism(abc.ABC):
    """One side of a handshake.

    Call :meth:`begin` once both greetings were exchanged, then :meth:`take` for each command that comes. Once
    ``credentials`` are set, call :meth:`decide` before the next :meth:`take`. Both sides have credentials to
    decide about: a side that dials those of the server. Once ``error`` is set, the connection must be cut,
    after what was returned is sent.
    """

    name: ClassVar[str]
    """Name in the greeting: "NULL", "PLAIN" or "CURVE"."""
    refusal: ClassVar[bytes] = b""
    """Bytes to send to a peer that does not get in."""

    __slots__ = ("_awaited", "_metadata", "credentials", "done", "error", "properties", "traffic")

    def __init__(self, metadata: bytes, awaited: bytes) -> None:
        """``metadata``: properties of this side; ``awaited``: name of the first command that must come."""
        self.error = ""
        """Reason why the connection must be cut, for the log."""
        self.credentials: Credentials | None = None
        """Credentials that the peer has shown."""
        self.properties: dict[bytes, bytes] | None = None
        """Properties of the peer by lower-case name."""
        self.done = False
        """True once the handshake is complete in both directions."""
        self.traffic: Traffic | None = None
        """Encryption of what follows once it is done; None: frames go as they are."""
        self._metadata = metadata
        self._awaited = awaited

    @property
    def awaited(self) -> str:
        """Name of the command that must come next; empty if none."""
        return self._awaited.decode()

    def begin(self) -> bytes:
        """Return what to send once both greetings were exchanged."""
        return b""

    def take(self, body: bytes) -> bytes:
        """Read the body of a command that came; return what to send."""
        if self.error:
            return b""
        name, about = split(body)
        if name == b"ERROR":
            self.error = complaint(about)
        elif self._awaited and name == self._awaited:
            return self._read(about)
        else:
            # Its name only: a HELLO of PLAIN has a password.
            self.error = f"broken ZMTP: a command {name[:24]!r} where {self.awaited or 'nothing'} belongs"
        return b""

    def decide(self, why: str) -> bytes:
        """Admit the peer, or refuse it for a reason; return what to send."""
        if why:
            self.error = why
            return self.refusal
        return self._admit()

    @abc.abstractmethod
    def _read(self, about: bytes) -> bytes:
        """Read the data of the awaited command; return what to send."""

    @abc.abstractmethod
    def _admit(self) -> bytes:
        """Go on with a peer that gets in; return what to send."""

    def _broken(self, why: str) -> bytes:
        """Note what is wrong with the awaited command; nothing is to be sent."""
        self.error = f"broken ZMTP: a {self.awaited} command {why}"
        return b""

    def _learn(self, metadata: bytes) -> None:
        """Read the properties of the peer."""
        self.properties = read_properties(metadata)
        if self.properties is None:
            self._broken("whose properties can't be read")
