"""A service manager of a test, as far as a process speaks to one: the socket of sd_notify(3).

::

    with ServiceManager(tmp_path) as manager, BrokerProcess(uri, env=manager.environment) as broker:
        manager.wait_for("READY")
"""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from support.waiting import TIMEOUT


class ServiceManager:
    """Listens in ``folder``, or at a name without a file; ``watchdog``: seconds that it asks for."""

    def __init__(self, folder: Path | None = None, *, name: str = "", watchdog: float = 0.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify") if folder else "\0" + name)
        address = f"{folder}/notify" if folder else f"@{name}"
        watched = {"WATCHDOG_USEC": str(int(watchdog * 1e6))} if watchdog else {}
        self.environment: Mapping[str, str] = {"NOTIFY_SOCKET": address, **watched}
        self.heard: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self, timeout: float = TIMEOUT) -> dict[str, str]:
        """Return the next message; TimeoutError without one."""
        self._socket.settimeout(timeout)
        message = dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))
        self.heard.append(message)
        return message

    def wait_for(self, name: str, value: str = "") -> dict[str, str]:
        """Return the next message with ``value`` in this field; those before are in ``heard``."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            message = self.next()
            if value in message.get(name, "\0"):
                return message
        raise AssertionError(f"no {name} with {value!r} came: {self.heard[-10:]}")

    def drain(self) -> None:
        """Read what has come."""
        self._socket.settimeout(0)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            pass
