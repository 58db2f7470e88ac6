"""A real broker for the tests of a session, with a MongoDB of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Self

from sluicemq.app import App
from sluicemq.client import Client
from sluicemq.protocol.environment import PREFIX
from sluicemq.protocol.errors import TimeoutError, UnavailableError
from sluicemq.testing.apps import at_broker

#: Seconds that the broker has to start, with its MongoDB, and to stop.
_WITHIN: Final = 120
_CONFIG: Final = """
[broker]
endpoint = "@{endpoint}"
data_dir = "{folder}/data"
http = ""
devices = false
history = false
"""


class EmbeddedBroker:
    """A broker with an embedded MongoDB, as a process of its own; all that it writes is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/smq"
        self._log = folder / "broker.log"
        config = folder / "broker.toml"
        config.write_text(_CONFIG.format(endpoint=self.endpoint, folder=folder))
        words = [sys.executable, "-m", "sluicemq_broker", "--config", str(config)]
        own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=own)  # noqa: S603 - this package's own
        self.client = Client(endpoint=self.endpoint, timeout=_WITHIN)

    def connect(self, app: App) -> AbstractContextManager[App]:
        """Have an app push to this broker, whatever its endpoint, until the block ends."""
        return at_broker(app, self.endpoint)

    def clear(self) -> None:
        """Remove all schedules, queues and subscriptions, and the messages of all streams.

        Raises an error while workers are connected.
        """
        for schedule in self.client.schedules.list():
            self.client.schedules.delete(schedule.name)
        for queue in self.client.queues.list():
            self.client.queues.delete(queue.name, wait=None).result()
        for held in self.client.subscriptions.list():
            self.client.subscriptions.delete(held.stream, held.name)
        for stream in self.client.streams.list():
            self.client.streams.erase(stream.name)

    def close(self) -> None:
        """Stop the broker and its MongoDB."""
        self.client.close()
        self._process.terminate()
        try:
            self._process.wait(_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __enter__(self) -> Self:
        """Wait until it serves; raises RuntimeError with its log if it ends before."""
        for _ in range(_WITHIN):
            try:
                self.client.ping(timeout=1.0)
            except (TimeoutError, UnavailableError):
                if self._process.poll() is None:
                    continue
            else:
                return self
            break
        self.close()
        raise RuntimeError(f"the broker of the tests did not start:\n{self._log.read_text()[-5000:]}")

    def __exit__(self, *_error: object) -> None:
        self.close()
