"""A scripted broker that lets only some in: libzmq's own server of CURVE, PLAIN or NULL, with ZAP."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from clients.scripted_broker import ScriptedBroker

CURVE, PLAIN, NULL = "CURVE", "PLAIN", "NULL"


class GuardedBroker(ScriptedBroker):
    """``keys``: public keys in Z85 that it lets in; ``passwords``: those of users."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        self.mechanism = mechanism
        public, self._secret = zmq.curve_keypair()
        self.server_key = public.decode()
        self.keys: set[str] = set()
        self.passwords: dict[str, str] = {}
        self.status = b"400"
        """Status of those whom it does not let in."""
        self.refused = 0

    def _guard(self, door: zmq.Socket[bytes]) -> None:
        zap = self._context.socket(zmq.REP)
        zap.linger = 0
        zap.bind("inproc://zeromq.zap.01")
        self._guards = [zap]
        door.zap_domain = b"broker"
        if self.mechanism == CURVE:
            door.curve_server = True
            door.curve_secretkey = self._secret
        if self.mechanism == PLAIN:
            door.plain_server = True

    def _admit(self) -> None:
        (zap,) = self._guards
        while zap.poll(0):
            version, number, _domain, _address, _identity, _mechanism, *shown = zap.recv_multipart()
            admitted = self._knows(shown)
            self.refused += not admitted
            zap.send_multipart([version, number, b"200" if admitted else self.status, b"", b"", b""])

    def _knows(self, shown: list[bytes]) -> bool:
        if self.mechanism == CURVE:
            return z85.encode(shown[0]).decode() in self.keys
        if self.mechanism == PLAIN:
            user, password = (text.decode() for text in shown)
            return self.passwords.get(user) == password
        return False
