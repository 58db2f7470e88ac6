"""Messages that never became jobs of a queue, on their way to its dead letters."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.context import Context
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import QueueStore
from sluicemq_devices.hub import Watermark

log = logging.getLogger("broker.queue")

#: Messages that could not be read, kept of one queue for each run of the broker.
UNREADABLE_KEPT: Final = 1000
#: In one statement: each may have 128 KiB, and the driver writes them all down in one turn of the hub.
_KEPT_AT_ONCE: Final = 20


class _Unreadable(NamedTuple):
    """One of them; its size counts at that mark."""

    message: dict[str, Any]
    mark: Watermark
    size: int


class UnreadableMessages:
    """Messages to one queue that never became jobs: kept among its dead letters."""

    def __init__(self, store: QueueStore, context: Context) -> None:
        self._store = store
        self._clock, self._retry = context.clock, context.retry
        self._seen = 0
        self._letters: Batcher[_Unreadable] = Batcher(self._write, size=_KEPT_AT_ONCE)

    def keep(self, message: dict[str, Any], mark: Watermark, size: int) -> None:
        """Keep one; past a bound it is only counted, by whoever could not read it.

        Until it is written its ``size`` counts at the ``mark`` of the door through which it came.
        """
        self._seen += 1
        if self._seen <= UNREADABLE_KEPT:
            mark.take(1, size)
            self._letters.add(_Unreadable(message, mark, size))

    @property
    def busy(self) -> bool:
        """True if one is not written yet."""
        return self._letters.busy

    def _write(self, letters: list[_Unreadable]) -> None:
        def statement() -> None:
            self._store.prepare(anew=True)
            self._store.keep_unreadable([each.message for each in letters], self._clock.now())

        try:
            self._retry.run(statement)
        except SluiceError:
            log.exception("%d unreadable messages are not kept", len(letters))
        finally:
            for each in letters:
                each.mark.give(1, each.size)
