"""How many jobs are read from MongoDB in one reply: the driver makes all of its documents in one turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import gevent
from pymongo.command_cursor import CommandCursor
from pymongo.cursor import Cursor

from sluicemq_broker.job import Job

#: Bytes of headers in one reply, at most as far as is known: some 5 ms.
_BYTES: Final = 512 * 1024
#: Few enough, whatever headers they have; with so many a thousand jobs are asked for in 60 replies.
_LEAST: Final = 16
#: Jobs that are measured first, when nobody knows how large they are.
MEASURED: Final = 32
#: Of the dearest headers that may be; until something is known, all are taken to be like them.
_DEAREST: Final = 64 * 1024
_MOMENT: Final = 1e-9  # seconds

_Document = dict[str, Any]


class ReplySizes:
    """Reckons with the largest jobs, and the dearest headers, that have been pushed and claimed lately.

    Payloads take memory, headers take time: jobs that are small and without headers are read all at once.
    """

    def __init__(self) -> None:
        self._dearest = _DEAREST
        self._largest = 0  # nothing is known

    @property
    def known(self) -> bool:
        """False: nothing was pushed or claimed yet, so :meth:`measured` should be told."""
        return self._largest > 0

    def measured(self, largest: int) -> None:
        """The largest document among the next few."""
        self._largest = max(1, largest)

    def size(self, limit: int, room: int) -> int:
        """How many of these to have in one reply; one more than all where they fit in ``room`` bytes."""
        cheap = max(_LEAST, _BYTES // max(1, self._dearest))
        return min(limit + 1, cheap, max(1, room // max(1, self._largest)))

    def most(self, limit: int, room: int) -> int:
        """How many of these fit in ``room`` bytes, as far as is known; one at least."""
        return max(1, min(limit, room // max(1, self._largest)))

    def pushed(self, jobs: Sequence[Job]) -> None:
        """These come into the queue: their sizes and headers say how large pages may be."""
        self._note(jobs, self._largest, self._dearest)

    def claimed(self, jobs: Sequence[Job]) -> None:
        """These were; what is seen no more is reckoned with ever less."""
        self._note(jobs, self._largest // 2, self._dearest // 8)

    def _note(self, jobs: Sequence[Job], largest: int, dearest: int) -> None:
        if jobs:
            self._largest = max([largest, 1, *[job.size for job in jobs]])
            self._dearest = max([dearest, *[job.size - len(job.payload) for job in jobs if job.headers]])


def replies(found: Cursor[_Document] | CommandCursor[_Document], at_once: int) -> Iterator[list[_Document]]:
    """What was found, a reply of so many at a time; others have their turn of the hub between them."""
    while reply := found.to_list(at_once):
        yield reply
        if found.alive:
            gevent.sleep(_MOMENT)  # the next reply may have been there already
