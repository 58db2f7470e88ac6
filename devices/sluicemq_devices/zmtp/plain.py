"""The mechanism PLAIN (ZeroMQ RFC 24): a client shows a user and a password, and nothing is encrypted.

client:  HELLO user password        INITIATE properties
server:           WELCOME (or ERROR)            READY properties

User and password have a length of one byte before them.

libzmq (4.3.5) sends and expects "^RROR" where ERROR with its length belongs: C++ reads "E" as part of the
escape before it. Its clients report our ERROR as a failed protocol, not as a failed authentication. A client
here understands both.
"""

from __future__ import annotations

from typing import Final

from sluicemq_devices.zmtp.credentials import PLAIN, Credentials
from sluicemq_devices.zmtp.frames import command, short
from sluicemq_devices.zmtp.mechanism import REFUSAL, Mechanism

_ERROR_OF_LIBZMQ: Final = b"^RROR"


class PlainServer(Mechanism):
    """The side that asks for a user and a password."""

    __slots__ = ()
    name = PLAIN
    refusal = REFUSAL

    def __init__(self, metadata: bytes) -> None:
        super().__init__(metadata, b"HELLO")

    def _read(self, about: bytes) -> bytes:
        return self._hello(about) if self._awaited == b"HELLO" else self._initiate(about)

    def _hello(self, about: bytes) -> bytes:
        try:
            user, password = (text.decode() for text in _two_texts(about))
        except ValueError:
            return self._broken("without a user and a password in UTF-8")
        self.credentials = Credentials(PLAIN, user=user, password=password)
        self._awaited = b""
        return b""

    def _admit(self) -> bytes:
        self._awaited = b"INITIATE"
        return command(b"WELCOME", b"")

    def _initiate(self, about: bytes) -> bytes:
        self._learn(about)
        if self.error:
            return b""
        self.done, self._awaited = True, b""
        return command(b"READY", self._metadata)


class PlainClient(Mechanism):
    """The side that shows a user and a password."""

    __slots__ = ("_hello",)
    name = PLAIN

    def __init__(self, metadata: bytes, user: str, password: str) -> None:
        """Raises ValueError for a user or a password of more than 255 bytes in UTF-8."""
        super().__init__(metadata, b"WELCOME")
        texts = user.encode(), password.encode()
        if max(map(len, texts)) > 255:
            raise ValueError("a user and a password of PLAIN have 255 bytes in UTF-8 at most")
        self._hello = b"".join(map(short, texts))

    def begin(self) -> bytes:
        """Return HELLO."""
        return command(b"HELLO", self._hello)

    def take(self, body: bytes) -> bytes:
        """Read the body of a command that came; return what to send."""
        if body.startswith(_ERROR_OF_LIBZMQ):
            body = b"\x05ERROR" + body.removeprefix(_ERROR_OF_LIBZMQ)
        return super().take(body)

    def _read(self, about: bytes) -> bytes:
        return self._welcome(about) if self._awaited == b"WELCOME" else self._ready(about)

    def _welcome(self, about: bytes) -> bytes:
        if about:
            return self._broken(f"with {len(about)} bytes too many")
        self._awaited = b"READY"
        return command(b"INITIATE", self._metadata)

    def _ready(self, about: bytes) -> bytes:
        self._learn(about)
        if not self.error:
            self.credentials = Credentials(PLAIN)
            self._awaited = b""
        return b""

    def _admit(self) -> bytes:
        self.done = True
        return b""


def _two_texts(data: bytes) -> tuple[bytes, bytes]:
    """Return two texts with their lengths before them; raises ValueError if that is not all there is."""
    end = 1 + data[0] if data else 0
    first, second = data[1:end], data[end + 1 :]
    if not data or end >= len(data) or len(second) != data[end]:
        raise ValueError("not two texts")
    return first, second
