"""Batches: items that arrive while a write is under way are written together by the next one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import gevent
from gevent import get_hub, getcurrent
from gevent.event import Event
from gevent.monkey import get_original
from greenlet import greenlet

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.runtime.shield import shielded

log = logging.getLogger("broker")

Item = TypeVar("Item")


class _Greenlets(get_original("threading", "local")):  # type: ignore[misc]
    """Greenlets of one thread that wait for work, of any batcher."""

    def __init__(self) -> None:
        self.resting: list[greenlet] = []


_greenlets = _Greenlets()


class Batcher(Generic[Item]):
    """Hands items to ``write`` in their order, up to ``size`` at a time, ``in_flight`` writes at once.

    A batch has one item when the broker is idle, for latency, and hundreds under load. ``gather`` is called
    before a batch is taken, with the number of waiting items, and may block. ``weigh``: how much of ``size``
    an item takes.

    A batcher has a greenlet only while it has work, so a thousand idle queues cost nothing. It takes one that
    has worked for another batcher, if one rests: making one takes a fiftieth of a push.

    ``write`` blocks until its batch is settled, and handles its own errors. If it raises, that is logged and
    the batch is given to ``failed``.
    """

    def __init__(
        self,
        write: Callable[[list[Item]], None],
        *,
        size: int,
        in_flight: int = 1,
        gather: Callable[[int], None] = lambda _waiting: None,
        weigh: Callable[[Item], int] = lambda _item: 1,
        failed: Callable[[list[Item]], None] = lambda _batch: None,
    ) -> None:
        self._write = write
        self._size = size
        self._in_flight = in_flight
        self._gather = gather
        self._weigh = weigh
        self._failed = failed
        self._items: deque[Item] = deque()
        self._running = 0
        self._idle = Event()
        self._idle.set()

    def __len__(self) -> int:
        """Return how many items wait; those being written don't count."""
        return len(self._items)

    @property
    def busy(self) -> bool:
        """True if anything waits or is being written."""
        return not self._idle.is_set()

    def add(self, *items: Item) -> None:
        """Append items; never blocks."""
        self.extend(items)

    def extend(self, items: Iterable[Item]) -> None:
        """Append items in their order; never blocks."""
        self._items.extend(items)
        if self._items and self._running < self._in_flight:
            self._running += 1
            self._idle.clear()
            if _greenlets.resting:
                get_hub().loop.run_callback(_greenlets.resting.pop().switch, self)
            else:
                gevent.spawn_raw(_work_for, self)

    def clear(self) -> list[Item]:
        """Remove and return everything that waits."""
        left = list(self._items)
        self._items.clear()
        return left

    def drain(self, timeout: float | None = None) -> bool:
        """Block until nothing waits and nothing is being written; False after ``timeout`` seconds."""
        return bool(self._idle.wait(timeout))

    def work(self) -> None:
        """Write until nothing waits; called in a greenlet of its own by :meth:`extend`."""
        try:
            while self._items:
                self._gather(len(self._items))
                self._write_one(self._take())
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def _write_one(self, batch: list[Item]) -> None:
        if not batch:
            return
        try:
            self._write(batch)
        except UnavailableError as error:
            log.error("a batch of %d was not written: %s", len(batch), error)  # noqa: TRY400 - the store's text says all
            self._failed(batch)
        except Exception:
            log.exception("a batch of %d failed", len(batch))
            self._failed(batch)

    def _take(self) -> list[Item]:
        batch: list[Item] = []
        room = self._size
        while self._items and room > 0:
            item = self._items.popleft()
            batch.append(item)
            room -= self._weigh(item)
        return batch


def _work_for(batcher: Batcher[Any]) -> None:
    """Work for one batcher after the other, as long as not too many others rest."""
    while True:
        shielded(batcher.work)
        del batcher  # it may belong to a queue that is removed
        if len(_greenlets.resting) == 64:  # as many may rest
            return
        _greenlets.resting.append(getcurrent())
        batcher = get_hub().switch()
