"""The server's side of a CURVE handshake."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
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
from sluicemq_devices.zmtp.mechanism import REFUSAL, Mechanism

_VERSION: Final = b"\x01\x00"
_HELLO_BYTES: Final = 194
_VOUCH: Final = slice(KEY + 16, KEY + 16 + 2 * KEY + BOX)  # in the box of INITIATE
_COOKIE_BYTES: Final = 16 + 2 * KEY + BOX
_LEAST_INITIATE: Final = _COOKIE_BYTES + 8 + BOX + _VOUCH.stop
_FIRST_NONCE: Final = (1).to_bytes(8)


class CurveServer(Mechanism):
    """Knows its permanent secret key, and learns the client's permanent public key.

    After WELCOME it keeps a key for the cookie and the nonce of HELLO, no more: the keys of the connection
    are in the cookie. That key is random for each connection, so an INITIATE that was recorded elsewhere is
    refused by one symmetric operation, before any other work.
    """

    __slots__ = ("_cookie_key", "_heard", "_key", "_most_bytes", "_random", "_secret")
    name = CURVE
    refusal = REFUSAL

    def __init__(
        self,
        metadata: bytes,
        most_bytes: int,
        secret_key: bytes,
        random: Callable[[int], bytes] = randombytes,
    ) -> None:
        super().__init__(metadata, b"HELLO")
        self._most_bytes = most_bytes
        self._secret = secret_key
        self._random = random
        self._heard = bytes(8)  # last nonce of the client
        self._cookie_key = self._key = b""

    def _read(self, about: bytes) -> bytes:
        try:
            return self._hello(about) if self._awaited == b"HELLO" else self._initiate(about)
        except Broken:
            return self._broken("that can't be opened: made for another key or connection, or altered")

    def _hello(self, about: bytes) -> bytes:
        if len(about) != _HELLO_BYTES:
            return self._broken(f"of {len(about)} bytes, not {_HELLO_BYTES}")
        version, padding, client, nonce = about[:2], about[2:74], about[74:106], about[106:114]
        if version != _VERSION or any(padding):
            return self._broken(f"of CurveZMQ {version[0]}.{version[1]}, or whose padding is not empty")
        if nonce <= self._heard:
            return self._broken("whose nonce does not rise")
        key = shared_key(client, self._secret)
        if any(unseal(about[114:], b"CurveZMQHELLO---" + nonce, key)):
            return self._broken("whose box is not empty")
        self._heard = nonce
        self._awaited = b"INITIATE"
        return self._welcome(client, key)

    def _welcome(self, client: bytes, key: bytes) -> bytes:
        secret = self._random(KEY)
        self._cookie_key = self._random(KEY)
        cookie_nonce, nonce = self._random(16), self._random(16)
        cookie = cookie_nonce + seal(client + secret, b"COOKIE--" + cookie_nonce, self._cookie_key)
        return command(b"WELCOME", nonce + seal(public_of(secret) + cookie, b"WELCOME-" + nonce, key))

    def _initiate(self, about: bytes) -> bytes:
        if len(about) < _LEAST_INITIATE:
            return self._broken(f"of {len(about)} bytes, less than {_LEAST_INITIATE}")
        cookie_key, self._cookie_key = self._cookie_key, b""
        cookie = unseal(about[16:_COOKIE_BYTES], b"COOKIE--" + about[:16], cookie_key)
        client, secret = cookie[:KEY], cookie[KEY:]
        nonce, box = about[_COOKIE_BYTES : _COOKIE_BYTES + 8], about[_COOKIE_BYTES + 8 :]
        if nonce <= self._heard:
            return self._broken("whose nonce does not rise")
        key = shared_key(client, secret)
        shown = unseal(box, b"CurveZMQINITIATE" + nonce, key)
        permanent, vouch_nonce = shown[:KEY], shown[KEY : _VOUCH.start]
        vouch = unseal(shown[_VOUCH], b"VOUCH---" + vouch_nonce, shared_key(permanent, secret))
        if not compare_digest(vouch, client + public_of(self._secret)):
            return self._broken("whose vouch is for another connection or another server")
        self._learn(shown[_VOUCH.stop :])
        if not self.error:
            self._heard, self._key, self._awaited = nonce, key, b""
            self.credentials = Credentials(CURVE, key=permanent)
        return b""

    def _admit(self) -> bytes:
        box = seal(self._metadata, b"CurveZMQREADY---" + _FIRST_NONCE, self._key)
        self.traffic = CurveTraffic(
            self._key,
            FROM_SERVER,
            FROM_CLIENT,
            sent=1,
            received=int.from_bytes(self._heard),
            most_bytes=self._most_bytes,
        )
        self.done = True
        return command(b"READY", _FIRST_NONCE + box)
