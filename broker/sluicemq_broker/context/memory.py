"""Bounds of what all queues of a broker together hold in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from sluicemq_broker.runtime import Budget
from sluicemq_devices.hub import Shares, Watermark
from sluicemq_devices.sockets import Outgoing

#: Jobs whose expiry is timed, of about 200 bytes each: 20 MB. The sweep ends all beyond.
MOST_EXPIRIES: Final = 100_000


class Memory:
    """The bounds over all queues, in bytes and in number.

    ``pushes``: bytes of jobs on their way to MongoDB; each door has a mark for their number. ``verdicts``:
    jobs that were settled or given back and are not written yet, with the bytes of results and reasons, by
    the ``resume`` of their queue, which is called when it has room again. A queue that has used its share
    hands out nothing, so a queue whose statements get no answer stops no other. While ``pushes`` or
    ``verdicts`` is full, no door reads a large message to its end. ``outgoing``: bytes that peers have not
    read, jobs at workers among them; by default twice ``hwm_bytes``. ``staged``: bytes of jobs that are held
    for workers, or that claims under way may bring; while it is full each queue holds one job for its
    workers at most. ``expiries``: jobs whose expiry is timed, within a twentieth of a second.
    """

    def __init__(
        self, hwm: int = 10_000, hwm_bytes: int = 64 * 2**20, *, outgoing: Outgoing | None = None
    ) -> None:
        self.outgoing = outgoing or Outgoing(2 * hwm_bytes)
        self.staged = Budget(hwm_bytes)
        self.expiries = Budget(MOST_EXPIRIES)
        self.pushes = Watermark(sys.maxsize, hwm_bytes, self._changed, self._changed)
        mark = Watermark(hwm, hwm_bytes, self._changed, self._changed)
        # One queue alone may have four fifths of all verdicts: 5,000 are under way at once at full speed,
        # and a stop there would cost each job that comes meanwhile a claim.
        self.verdicts: Shares[Callable[[], None]] = Shares(mark, lambda resume: resume(), 4.0)
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` when ``pushes`` or ``verdicts`` as a whole becomes full, or is not any more."""
        self._followers.append(changed)

    @property
    def takes_no_more(self) -> bool:
        """True if no large message must be read to its end."""
        return self.pushes.is_full or self.verdicts.mark.is_full

    def _changed(self) -> None:
        for changed in self._followers:
            changed()
