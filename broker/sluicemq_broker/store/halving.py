"""Statements for many items: cut by bytes, and halved where MongoDB refuses them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from sluicemq_broker.store.errors import Refused

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: How many jobs the next statement may have, at most.
BatchSize = Callable[[], int]
#: Ids that are read at once; the driver makes all of a reply in one turn of the hub.
READ_AT_ONCE: Final = 1000


def in_halves(
    items: Sequence[Item],
    statement: Callable[[Sequence[Item]], Answer],
    *,
    refused: tuple[type[Exception], ...] = (Refused,),
    most: Callable[[], int] = lambda: sys.maxsize,
) -> Iterator[tuple[Sequence[Item], Answer | Exception]]:
    """Call ``statement`` for all items, in order; yield each part with its answer.

    A part has ``most()`` items at most. A part that raises one of ``refused`` is halved and each half is
    tried, until one item is left: its answer is the error. Other errors are raised; what was not yielded by
    then is not done::

        [a, b, c, d] refused -> [a, b] stored, [c, d] refused -> [c] stored, [d]: its answer is the error
    """
    waiting = deque([items] if items else [])
    while waiting:
        part = waiting.popleft()
        if len(part) > most():
            waiting.appendleft(part[most() :])
            part = part[: most()]
        try:
            answer = statement(part)
        except refused as error:
            half = len(part) // 2
            if half:
                waiting.extendleft((part[half:], part[:half]))
            else:
                yield part, error
        else:
            yield part, answer


def by_bytes(
    items: Iterable[Item],
    size: Callable[[Item], int],
    most_bytes: int,
    most: Callable[[], int] = lambda: sys.maxsize,
) -> Iterator[list[Item]]:
    """Yield the items in parts of up to ``most_bytes`` and ``most()`` items; a larger item is a part alone.

    Without items there is one empty part.
    """
    if isinstance(items, Sequence) and len(items) <= most() and sum(map(size, items)) <= most_bytes:
        yield list(items)
        return
    part: list[Item] = []
    count, room = most(), most_bytes
    for item in items:
        weight = size(item)
        if part and (len(part) >= count or weight > room):
            yield part
            part, count, room = [], most(), most_bytes
        part.append(item)
        room -= weight
    yield part


def batches(windows: Iterable[Iterable[tuple[str, int]]], size: BatchSize) -> Iterator[list[str]]:
    """Yield the ids of these jobs, given as (id, bytes), in parts that one statement takes.

    A window without jobs gives an empty part, so that others have their turn.
    """
    for window in windows:
        # Bytes of the jobs in one statement, at most, unless one alone has more.
        for part in by_bytes(window, lambda job: job[1], 8 * 2**20, size):
            yield [job_id for job_id, _ in part]
