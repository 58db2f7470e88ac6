"""Life of an object that has a connection: start, stop, run, close and ``with``, in one way for all."""

from __future__ import annotations

import threading
from typing import Self

from sluicemq.arguments import checked
from sluicemq.complaints import log
from sluicemq.stop_signals import StopSignals
from sluicemq.transport.connection import Connection


@checked()
class LongLived:
    """Has a connection, and lives until it is stopped. Each method may be called again.

    A subclass has its work in ``start`` and its end in ``stop``, and says in ``close`` what was left undone.
    """

    _connection: Connection
    _stop_asked: threading.Event
    """Set once it is to stop."""

    def start(self) -> None:
        """Begin in the background, without waiting for the broker. Leaving a ``with`` block ends it."""

    def stop(self, timeout: float | None = None) -> bool:
        """End in order, within ``timeout`` seconds; False if something is left undone. Does not raise.

        May be called from any thread, before ``start``, and again.
        """
        self._stop_asked.set()
        self.close(timeout)
        return True

    def run(self) -> None:
        """Start, and last until ``stop`` is called in another thread, or until SIGTERM or SIGINT; then close.

        Signals are caught in the main thread only. A second one raises KeyboardInterrupt.
        """
        with StopSignals(self._stop_asked.set, raises=True).caught(self._to_signal()):
            self.start()
            self._stop_asked.wait()
            self.close()

    def close(self, timeout: float | None = None) -> None:
        """End as ``stop`` does, and raise the error that has ended it, or of what is left undone."""
        raise NotImplementedError

    def _to_signal(self) -> Connection:
        """Return the connection whose thread hears of signals."""
        return self._connection

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except Exception as left:
            if error is None:
                raise
            log.error("while leaving a %s's block: %s", type(self).__name__.lower(), left)
