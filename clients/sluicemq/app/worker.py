"""Workers of tasks, which declare the schedules of their app when they start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
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

    def run_tasks(self) -> None:
        """Work until a signal, or :meth:`stop_soon`."""
        self.run()

    def stop_soon(self) -> None:
        """Begin no more jobs, and have the run end in order; from any thread."""
        self._begin_no_more()
        self._stop_asked.set()

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected to a broker."""
        return _is_connected(self)


class AsyncTaskWorker(aio.Worker):
    """A worker for asyncio that calls ``declare`` in a thread when it starts."""

    declare: Callable[[], None] | None = None
    _begun: Worker | None = None
    _stops = False

    def run_tasks(self) -> None:
        """Work in an event loop of its own until a signal, or :meth:`stop_soon`."""
        asyncio.run(self.run())

    def stop_soon(self) -> None:
        """Begin no more jobs, and have the run end in order; from any thread."""
        self._stops = True
        if self._begun is not None:
            self._end(self._begun)

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected to a broker."""
        return self._begun is not None and _is_connected(self._begun)

    def _made(self) -> Any:
        core = self._begun = super()._made()
        if self._stops:
            self._end(core)
        if self.declare is not None:
            _declare(self.declare, core)
        return core

    @staticmethod
    def _end(core: Any) -> None:
        core._begin_no_more()
        with suppress(RuntimeError):  # its loop is closed
            core.loop.call_soon_threadsafe(core.to_stop.set)


def _is_connected(worker: Worker) -> bool:
    return any(connection.connected_to for connection in worker._connections)


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
