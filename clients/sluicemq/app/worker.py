"""A worker of tasks, which declares the schedules of its app when it starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sluicemq.complaints import complain, log
from sluicemq.protocol.errors import SluiceError, TimeoutError, UnavailableError
from sluicemq.worker import Worker

#: Seconds until a broker that did not answer is asked again.
_PAUSE: Final = 2.0


class TaskWorker(Worker):
    """A worker that calls ``declare`` in the background when it starts, until a broker has answered."""

    declare: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to work in the background."""
        first = self._started_in is None
        super().start()
        if first and self.declare is not None:
            threading.Thread(
                target=self._declare, args=(self.declare,), name="sluicemq-schedules", daemon=True
            ).start()

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected to a broker."""
        return any(each.connected_to for each in self._connections)

    def _declare(self, declare: Callable[[], None]) -> None:
        while True:
            try:
                return declare()
            except (TimeoutError, UnavailableError) as error:
                log.warning("the schedules of the app are not declared yet: %s", error)
            except SluiceError as error:
                return log.error("the schedules of the app are not declared: %s", error)
            except Exception:  # noqa: BLE001 - the worker goes on
                return complain("the schedules of the app are not declared")
            if self._stop_asked.wait(_PAUSE):
                return None
