"""Sizes of MongoDB's replies with jobs: the driver makes all documents of a reply in one turn of the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pymongo.command_cursor import CommandCursor
from pymongo.cursor import Cursor

from sluicemq_broker.job import Job
from sluicemq_broker.store.values import Document
from sluicemq_devices.hub import let_others_run

#: Jobs that are measured first, while their sizes are unknown.
MEASURED: Final = 32


class ReplySizes:
    """Reckons with the largest jobs and the longest headers that were pushed and claimed lately.

    Payloads take memory, headers take time: jobs that are small and without headers are read all at once.
    """

    def __init__(self) -> None:
        # The headers that take longest; until something is known, all jobs are taken to have such headers.
        self._dearest = 64 * 1024
        self._largest = 0  # nothing is known

    @property
    def known(self) -> bool:
        """False: nothing was pushed or claimed yet, so call :meth:`measured`."""
        return self._largest > 0

    def measured(self, largest: int) -> None:
        """Note the bytes of the largest document among the next few."""
        self._largest = max(1, largest)

    def size(self, limit: int, room: int) -> int:
        """Return how many of ``limit`` jobs to have in one reply; one more than all where all fit."""
        # Bytes of headers in one reply, at most as far as is known: some 5 ms.
        # Jobs that any reply may have, whatever their headers; at that size a thousand jobs take 60
        # replies.
        cheap = max(16, (512 * 1024) // max(1, self._dearest))
        return min(limit + 1, cheap, max(1, room // max(1, self._largest)))

    def most(self, limit: int, room: int) -> int:
        """Return how many of ``limit`` jobs fit in ``room`` bytes, as far as is known; one at least."""
        return max(1, min(limit, room // max(1, self._largest)))

    def pushed(self, jobs: Sequence[Job]) -> None:
        """Note the sizes and headers of jobs that come into the queue."""
        self._note(jobs, self._largest, self._dearest)

    def claimed(self, jobs: Sequence[Job]) -> None:
        """Note those of jobs that were claimed; sizes that are not seen again count less and less."""
        self._note(jobs, self._largest // 2, self._dearest // 8)

    def _note(self, jobs: Sequence[Job], largest: int, dearest: int) -> None:
        if jobs:
            self._largest = max([largest, 1, *[job.size for job in jobs]])
            self._dearest = max([dearest, *[job.size - len(job.payload) for job in jobs if job.headers]])


def replies(found: Cursor[Document] | CommandCursor[Document], at_once: int) -> Iterator[list[Any]]:
    """Yield ``at_once`` documents at a time, with a turn of the hub for others between them."""
    while reply := found.to_list(at_once):
        yield reply
        if found.alive:
            let_others_run()  # the next reply may have been there already
