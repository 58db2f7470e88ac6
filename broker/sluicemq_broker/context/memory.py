"""Bounds of what all queues of a broker together hold in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from sluicemq_devices.hub import Shares, Watermark
from sluicemq_devices.sockets import Outgoing

#: Bytes that a claim may always bring: a few hundred small jobs, or one large one.
LEAST_CLAIM: Final = 64 * 2**10
#: One claim may bring an eighth of the free memory, so that other queues find room beside it.
_SHARE: Final = 8

#: One queue alone may have four fifths of all verdicts: 5,000 are under way at once at full speed, and a stop
#: there would cost each job that comes meanwhile a claim.
_VERDICTS_PART: Final = 4.0

#: Jobs whose expiry is timed, of about 200 bytes each: 20 MB. The sweep ends all beyond.
MOST_EXPIRIES: Final = 100_000

#: 10,000 and 64 MiB, the defaults of ``[broker] hwm`` and ``hwm_bytes``.
_HWM: Final = 10_000
_HWM_BYTES: Final = 64 * 2**20


class HandsOut(Hashable, Protocol):
    """The part of a queue that gives its jobs to workers."""

    def hand_out(self) -> None:
        """Hand out again."""


class Memory:
    """The bounds over all queues, in bytes and in number.

    ``pushes``: bytes of jobs on their way to MongoDB; each door has a mark for their number. ``verdicts``:
    jobs that were settled or given back and are not written yet, with the bytes of results and reasons. A
    queue that has used its share hands out nothing, so a queue whose statements get no answer stops no other.
    While ``pushes`` or ``verdicts`` is full, no door reads a large message to its end. ``outgoing``: bytes
    that peers have not read, jobs at workers among them; by default twice ``hwm_bytes``.
    """

    def __init__(
        self, hwm: int = _HWM, hwm_bytes: int = _HWM_BYTES, *, outgoing: Outgoing | None = None
    ) -> None:
        self.outgoing = outgoing or Outgoing(2 * hwm_bytes)
        self._staged = 0
        self._expiries = 0
        self.pushes = Watermark(sys.maxsize, hwm_bytes, self._changed, self._changed)
        mark = Watermark(hwm, hwm_bytes, self._changed, self._changed)
        self.verdicts: Shares[HandsOut] = Shares(mark, lambda queue: queue.hand_out(), _VERDICTS_PART)
        self._most = hwm_bytes
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` when ``pushes`` or ``verdicts`` as a whole becomes full, or is not any more."""
        self._followers.append(changed)

    @property
    def staged(self) -> int:
        """Bytes of jobs that are held for workers, or may be brought by a claim under way."""
        return self._staged

    @property
    def expiries(self) -> int:
        """Number of jobs whose expiry is timed."""
        return self._expiries

    def stage(self, size: int) -> None:
        """Add ``size`` bytes that are held for workers or may be claimed; negative: take them off."""
        self._staged += size

    def watch(self, count: int) -> None:
        """Add ``count`` jobs whose expiry is timed; negative: take them off."""
        self._expiries += count

    @property
    def stages_no_more(self) -> bool:
        """True if each queue must hold no more than one job for its workers."""
        return self._staged >= self._most

    @property
    def watches_no_more(self) -> bool:
        """True if no more jobs may be timed, to expire within a twentieth of a second."""
        return self._expiries >= MOST_EXPIRIES

    @property
    def takes_no_more(self) -> bool:
        """True if no large message must be read to its end."""
        return self.pushes.is_full or self.verdicts.mark.is_full

    @property
    def claim(self) -> int:
        """Bytes that one claim may bring now."""
        return max(LEAST_CLAIM, (self._most - self._staged) // _SHARE)

    def _changed(self) -> None:
        for changed in self._followers:
            changed()
