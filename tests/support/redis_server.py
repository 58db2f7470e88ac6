"""A Redis of a test's own: a process on a free port that keeps nothing."""

import socket
import subprocess
from types import TracebackType
from typing import Self

from support.ports import free_port
from support.waiting import TIMEOUT, wait_until


class RedisServer:
    """Runs while the ``with`` block does; ``url`` says where, with the password if it has one."""

    def __init__(self, password: str = "") -> None:
        self._port = free_port()
        self._password = password
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self._port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        keeps_nothing = ("--save", "", "--appendonly", "no", "--requirepass", self._password)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port), *keeps_nothing]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, what="the start of Redis")

    def kill(self) -> None:
        """``kill -9``; again is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.kill()
