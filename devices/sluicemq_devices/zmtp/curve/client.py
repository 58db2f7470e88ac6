"""The client's side of a CURVE handshake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicemq_devices.zmtp.credentials import CURVE, Credentials
from sluicemq_devices.zmtp.curve.sodium import (
    BOX,
    KEY,
    Broken,
    public_of,
    randombytes,
    seal,
    shared_key,
    unseal,
)
from sluicemq_devices.zmtp.curve.traffic import FROM_CLIENT, FROM_SERVER, CurveTraffic
from sluicemq_devices.zmtp.frames import command
from sluicemq_devices.zmtp.mechanism import Mechanism

_VERSION_AND_PADDING: Final = b"\x01\x00" + bytes(72)
_COOKIE_BYTES: Final = 16 + 2 * KEY + BOX
_WELCOME_BYTES: Final = 16 + BOX + KEY + _COOKIE_BYTES
_HELLO_NONCE, _INITIATE_NONCE = (1).to_bytes(8), (2).to_bytes(8)


class CurveClient(Mechanism):
    """Knows the server's permanent public key, and shows its own.

    Nobody but that server can open HELLO, answer with WELCOME, and learn the client's permanent key.
    """

    __slots__ = ("_key", "_most_bytes", "_passing", "_permanent", "_public", "_random", "_server")
    name = CURVE

    def __init__(
        self,
        metadata: bytes,
        most_bytes: int,
        secret_key: bytes,
        server_key: bytes,
        random: Callable[[int], bytes] = randombytes,
    ) -> None:
        super().__init__(metadata, b"WELCOME")
        self._most_bytes = most_bytes
        self._permanent = secret_key
        self._server = server_key
        self._random = random
        self._passing = random(KEY)  # secret key of this connection
        self._public = public_of(self._passing)
        self._key = b""  # of HELLO and WELCOME, then of all that follows

    def begin(self) -> bytes:
        """Return HELLO."""
        try:
            self._key = shared_key(self._server, self._passing)
        except Broken:
            self.error = "no handshake: the server key that is configured is none of CURVE"
            return b""
        box = seal(bytes(64), b"CurveZMQHELLO---" + _HELLO_NONCE, self._key)
        return command(b"HELLO", _VERSION_AND_PADDING + self._public + _HELLO_NONCE + box)

    def _read(self, about: bytes) -> bytes:
        try:
            return self._welcome(about) if self._awaited == b"WELCOME" else self._ready(about)
        except Broken:
            return self._broken("that can't be opened: made by another server, or altered")

    def _welcome(self, about: bytes) -> bytes:
        if len(about) != _WELCOME_BYTES:
            return self._broken(f"of {len(about)} bytes, not {_WELCOME_BYTES}")
        shown = unseal(about[16:], b"WELCOME-" + about[:16], self._key)
        server, cookie = shown[:KEY], shown[KEY:]
        self._key = shared_key(server, self._passing)
        self._awaited = b"READY"
        return self._initiate(cookie, shared_key(server, self._permanent))

    def _initiate(self, cookie: bytes, vouch_key: bytes) -> bytes:
        nonce = self._random(16)
        vouch = nonce + seal(self._public + self._server, b"VOUCH---" + nonce, vouch_key)
        shown = public_of(self._permanent) + vouch + self._metadata
        box = seal(shown, b"CurveZMQINITIATE" + _INITIATE_NONCE, self._key)
        return command(b"INITIATE", cookie + _INITIATE_NONCE + box)

    def _ready(self, about: bytes) -> bytes:
        nonce, box = about[:8], about[8:]
        if nonce <= bytes(8):
            return self._broken("without a nonce")
        self._learn(unseal(box, b"CurveZMQREADY---" + nonce, self._key))
        if not self.error:
            self.credentials = Credentials(CURVE, key=self._server)
            self.traffic = CurveTraffic(
                self._key,
                FROM_CLIENT,
                FROM_SERVER,
                sent=2,
                received=int.from_bytes(nonce),
                most_bytes=self._most_bytes,
            )
            self._awaited = b""
        return b""

    def _admit(self) -> bytes:
        self.done = True
        return b""
