"""Workers of tasks, which declare the schedules of their app when they start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sluicemq import aio
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
            _declare(self.declare, self)

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected to a broker."""
        return any(each.connected_to for each in self._connections)


class AsyncTaskWorker(aio.Worker):
    """A worker for asyncio that calls ``declare`` in a thread when it starts."""

    declare: Callable[[], None] | None = None

    def _made(self) -> Any:
        core = super()._made()
        if self.declare is not None:
            _declare(self.declare, core)
        return core


def _declare(declare: Callable[[], None], worker: Worker) -> None:
    run = partial(_declare_until_done, declare, worker)
    threading.Thread(target=run, name="sluicemq-schedules", daemon=True).start()


def _declare_until_done(declare: Callable[[], None], worker: Worker) -> None:
    while not worker._stopped:
        try:
            return declare()
        except (TimeoutError, UnavailableError) as error:
            log.warning("the schedules of the app are not declared yet: %s", error)
        except SluiceError as error:
            return log.error("the schedules of the app are not declared: %s", error)
        except Exception:  # noqa: BLE001 - the worker goes on
            return complain("the schedules of the app are not declared")
        worker._stop_asked.wait(_PAUSE)
    return None
