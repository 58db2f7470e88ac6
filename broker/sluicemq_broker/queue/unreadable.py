"""Messages that never became jobs of a queue: they are kept among its dead letters."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.runtime import Batcher
from sluicemq_devices.hub import Watermark

log = logging.getLogger("broker.queue")

#: Unreadable messages that are kept of one queue in each run of the broker.
UNREADABLE_KEPT: Final = 1000


class _Unreadable(NamedTuple):
    """A message, whose size counts at this mark."""

    message: dict[str, Any]
    mark: Watermark
    size: int


class UnreadableMessages:
    """The unreadable messages of one queue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._seen = 0
        # Messages in one statement: each may have 128 KiB, and the driver encodes them all in one turn of
        # the hub.
        self._batcher: Batcher[_Unreadable] = Batcher(self._write, size=20)

    def keep(self, message: dict[str, Any], mark: Watermark, size: int) -> None:
        """Keep a message, one of the first :data:`UNREADABLE_KEPT`; the door has counted it.

        Until it is written its ``size`` counts at the ``mark`` of the door through which it came.
        """
        self._seen += 1
        if self._seen <= UNREADABLE_KEPT:
            mark.take(1, size)
            self._batcher.add(_Unreadable(message, mark, size))

    @property
    def busy(self) -> bool:
        """Return True if any message is not written yet."""
        return self._batcher.busy

    def _write(self, batch: list[_Unreadable]) -> None:
        def statement() -> None:
            self._core.store.prepare(again=True)
            self._core.store.keep_unreadable([letter.message for letter in batch], self._core.clock.now())

        try:
            self._core.retry.run(statement)
        except SluiceError:
            log.exception("%d unreadable messages are not kept", len(batch))
        finally:
            for letter in batch:
                letter.mark.give(1, letter.size)
