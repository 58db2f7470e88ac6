"""Transactions of many items: fewer at once where MongoDB aborts large ones, more again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sluicemq_broker.runtime import Count
from sluicemq_broker.store.errors import Refused
from sluicemq_broker.store.halving import in_halves
from sluicemq_broker.store.jobs.indexes import Notice
from sluicemq_broker.store.jobs.transactions import Aborted

log = logging.getLogger("broker.store")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def _log(kind: str, text: str) -> None:
    log.warning("%s: %s", kind, text)


class Portions:
    """The size of one kind of transaction, at most ``most`` items.

    An abort for age or size halves it at once, and so do many conflicts; each portion that is carried out
    lets it grow. ``notice`` is called with each abort for age or size (default: it is logged).
    """

    def __init__(self, most: int, notice: Notice | None = None) -> None:
        self.size = most
        self._most = most
        self._notice = notice or _log

    def carry_out(
        self, items: Sequence[Item], statement: Callable[[Sequence[Item]], Answer]
    ) -> Iterator[tuple[Sequence[Item], Answer | Refused]]:
        """Carry out ``statement`` for all items, one portion at a time; yield each portion with its answer.

        A portion that MongoDB refuses or aborts is halved (:func:`in_halves`). Raises :class:`Aborted` where
        one item alone is aborted.
        """

        def carry_out_part(part: Sequence[Item]) -> Answer:
            try:
                answer = statement(part)
            except Aborted as error:
                if len(part) > 1:
                    self.shrink(len(part) // 2, error)
                raise
            self.grow(len(part))
            return answer

        halves = in_halves(items, carry_out_part, refused=(Aborted, Refused), most=lambda: self.size)
        for part, answer in halves:
            if isinstance(answer, Exception) and not isinstance(answer, Refused):
                raise answer
            yield part, answer

    def shrink(self, size: int, error: Aborted) -> None:
        """Take ``size`` items at most from now on, since a larger portion was aborted."""
        self.size = min(self.size, size)
        if not error.usual:
            self._notice(Count.TRANSACTIONS_ABORTED, f"{error}; the next one has {size} at most")

    def grow(self, carried_out: int) -> None:
        """Allow larger portions after one of ``carried_out`` items succeeded."""
        if carried_out >= self.size:
            # A portion that was carried out makes the next one larger by this part of it, and by one item
            # at least. So a size that was aborted is tried again after some dozen portions.
            self.size = min(self._most, self.size + max(1, self.size // 16))
