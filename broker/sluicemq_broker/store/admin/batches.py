"""Orders for many jobs go in pages: whoever iterates decides how large the next one is, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

#: How many jobs the next statement is to have, at most.
BatchSize = Callable[[], int]
#: Ids that are read at once; the driver makes all of a reply in one turn of the hub.
READ_AT_ONCE: Final = 1000
#: Bytes of the jobs in one statement, at most, unless one alone has more.
_BYTES_AT_ONCE: Final = 8 * 2**20


def batches(windows: Iterable[Iterable[tuple[str, int]]], size: BatchSize) -> Iterator[list[str]]:
    """Yield the ids of these jobs, given as (id, bytes), in parts that one statement takes.

    Of a window without jobs the part is empty: nothing was found there, and others have their turn.
    """
    for window in windows:
        ids: list[str] = []
        most, room = size(), _BYTES_AT_ONCE
        for job_id, weight in window:
            if ids and (len(ids) >= most or weight > room):
                yield ids
                ids, most, room = [], size(), _BYTES_AT_ONCE
            ids.append(job_id)
            room -= weight
        yield ids
