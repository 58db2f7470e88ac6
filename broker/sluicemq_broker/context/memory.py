"""What all queues of a broker hold in memory together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from sluicemq_devices.hub import Shares, Watermark
from sluicemq_devices.sockets import Outgoing

#: A claim may always bring so many bytes: a few hundred small jobs, or one large one.
LEAST_CLAIM: Final = 64 * 2**10
#: Of what is free, one claim may bring this part, so that other queues find room beside it.
_SHARE: Final = 8

#: So one queue alone may have four fifths of all verdicts: 5,000 are under way at once at full speed, and to
#: stop there would cost the jobs that come meanwhile a claim each.
_VERDICTS_PART: Final = 4.0

#: Jobs whose expiry is waited for, of about 200 bytes each: 20 MB. The sweep ends what is beyond.
MOST_EXPIRIES: Final = 100_000

#: 10,000 and 64 MiB, as ``[broker] hwm`` and ``hwm_bytes`` have it.
_HWM: Final = 10_000
_HWM_BYTES: Final = 64 * 2**20


class HandsOut(Hashable, Protocol):
    """What gives the jobs of one queue to its workers."""

    def hand_out(self) -> None:
        """Go on."""


class Memory:
    """The bounds over all queues, in bytes and in number.

    ``pushes``: jobs on their way to MongoDB, by their bytes only: each door has a mark for their number.
    ``verdicts``: jobs that were settled or are given back, until that is written, and the bytes of results
    and reasons. A queue that has its share of it hands out nothing, so that one whose statements are not
    answered stops none of the others. While ``pushes`` or ``verdicts`` is full no large message is read to
    its end, wherever it comes. ``outgoing``: what lies unread at all doors, jobs at workers among it; by
    default twice ``hwm_bytes``.
    """

    def __init__(
        self, hwm: int = _HWM, hwm_bytes: int = _HWM_BYTES, *, outgoing: Outgoing | None = None
    ) -> None:
        self.outgoing = outgoing or Outgoing(2 * hwm_bytes)
        self._staged = 0
        self._expiries = 0
        self.pushes = Watermark(sys.maxsize, hwm_bytes, self._tell, self._tell)
        mark = Watermark(hwm, hwm_bytes, self._tell, self._tell)
        self.verdicts: Shares[HandsOut] = Shares(mark, lambda queue: queue.hand_out(), _VERDICTS_PART)
        self._most = hwm_bytes
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Call this whenever ``pushes`` or ``verdicts`` as a whole has become full, or is no longer."""
        self._followers.append(changed)

    @property
    def staged(self) -> int:
        """Bytes of jobs that are held for workers, or may be brought by a claim under way."""
        return self._staged

    @property
    def expiries(self) -> int:
        """Jobs whose end is waited for."""
        return self._expiries

    def stage(self, size: int) -> None:
        """So many bytes more are held for workers, or may be brought; fewer, if it is negative."""
        self._staged += size

    def watch(self, count: int) -> None:
        """The end of so many jobs more is waited for; of fewer, if it is negative."""
        self._expiries += count

    @property
    def stages_no_more(self) -> bool:
        """True if no queue is to hold more than one job for its workers."""
        return self._staged >= self._most

    @property
    def watches_no_more(self) -> bool:
        """True if no more jobs are to be ended to the twentieth of a second."""
        return self._expiries >= MOST_EXPIRIES

    @property
    def takes_no_more(self) -> bool:
        """True if no large message is to be read to its end."""
        return self.pushes.is_full or self.verdicts.mark.is_full

    @property
    def claim(self) -> int:
        """How many bytes one claim may bring now."""
        return max(LEAST_CLAIM, (self._most - self._staged) // _SHARE)

    def _tell(self) -> None:
        for changed in self._followers:
            changed()
