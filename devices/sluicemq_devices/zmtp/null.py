"""The mechanism NULL (ZeroMQ RFC 23): nobody shows who it is, and frames go as they are.

both sides:  READY properties
"""

from __future__ import annotations

from sluicemq_devices.zmtp.credentials import NULL, Credentials
from sluicemq_devices.zmtp.frames import command
from sluicemq_devices.zmtp.mechanism import Mechanism


class Null(Mechanism):
    """Either side of NULL."""

    __slots__ = ()
    name = NULL

    def __init__(self, metadata: bytes) -> None:
        super().__init__(metadata, b"READY")

    def begin(self) -> bytes:
        """Return our READY: both sides send it at once."""
        return command(b"READY", self._metadata)

    def _read(self, about: bytes) -> bytes:
        self._learn(about)
        if not self.error:
            self.credentials = Credentials(NULL)
            self._awaited = b""
        return b""

    def _admit(self) -> bytes:
        self.done = True
        return b""
