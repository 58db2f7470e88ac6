"""Batches: an operation on many jobs is carried out in parts, whose sizes and times its caller decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sluicemq_broker.store.halving import by_bytes

#: How many jobs the next statement may have, at most.
BatchSize = Callable[[], int]
#: Ids that are read at once; the driver makes all of a reply in one turn of the hub.
READ_AT_ONCE: Final = 1000
#: Bytes of the jobs in one statement, at most, unless one alone has more.
_BYTES_AT_ONCE: Final = 8 * 2**20


def batches(windows: Iterable[Iterable[tuple[str, int]]], size: BatchSize) -> Iterator[list[str]]:
    """Yield the ids of these jobs, given as (id, bytes), in parts that one statement takes.

    A window without jobs gives an empty part, so that others have their turn.
    """
    for window in windows:
        for part in by_bytes(window, lambda job: job[1], _BYTES_AT_ONCE, size):
            yield [job_id for job_id, _ in part]
