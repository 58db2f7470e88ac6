"""A reader of the HTTP door, for tests: plain requests, and bytes as a stranger would send them."""

import http.client
import json
import socket
from typing import Any, NamedTuple

from support.waiting import TIMEOUT


class Answer(NamedTuple):
    """Answer of the HTTP door."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


class Web:
    """The door at ``host:port``."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """One request, on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT)
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): headers[name] for name in headers}
            )
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, said: Any = None, token: str = "", **headers: str) -> Answer:
        """An order as the dashboard gives it."""
        given = {"Content_Type": "application/json", "X_SluiceMQ_Action": "test", **headers}
        if token:
            given["Authorization"] = f"Bearer {token}"
        return self.get(path, "POST", json.dumps(said or {}).encode(), **given)

    def dial(self) -> socket.socket:
        """A bare connection."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=TIMEOUT)

    def send(self, text: bytes) -> bytes:
        """Send these bytes, and all that comes back until the door hangs up."""
        with self.dial() as stranger:
            stranger.sendall(text)
            return all_of(stranger)


def all_of(stranger: socket.socket) -> bytes:
    """Read all that comes until the other side hangs up."""
    came = bytearray()
    try:
        while part := stranger.recv(65536):
            came += part
    except ConnectionError:
        pass
    return bytes(came)
