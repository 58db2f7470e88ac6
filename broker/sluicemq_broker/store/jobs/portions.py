"""How many items one transaction has: fewer where MongoDB aborts those of many, and more again later."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from sluicemq_broker.runtime import Count
from sluicemq_broker.store.errors import Refused
from sluicemq_broker.store.jobs.indexes import Notice
from sluicemq_broker.store.jobs.transactions import Aborted

log = logging.getLogger("broker.store")

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: A portion that was carried out makes the next one larger by this part of it, and by one item at least: so
#: one that can't be carried out is tried again after some dozen others.
_GROWTH: Final = 16


def _logged(kind: str, text: str) -> None:
    log.warning("%s: %s", kind, text)


class Portions:
    """The size of one kind of transactions, at most ``most`` items.

    ``notice`` hears of each that was aborted for its age or size; None: the log does. The size is halved
    then, and after many conflicts; it grows with each portion that is carried out.
    """

    def __init__(self, most: int, notice: Notice | None = None) -> None:
        self.size = most
        self._most = most
        self._notice = notice or _logged

    def carry_out(
        self, items: Sequence[Item], statement: Callable[[Sequence[Item]], Answer]
    ) -> Iterator[tuple[Sequence[Item], Answer | Refused]]:
        """Carry out ``statement`` for all items, a portion at a time; yields each portion with its answer.

        Of a portion that MongoDB refuses each half is tried by itself, until one item is left: its answer is
        the error. Other errors are raised, and what was not yielded by then is not carried out.
        """
        waiting = deque([items] if items else [])
        while waiting:
            part = waiting.popleft()
            if len(part) > self.size:
                waiting.appendleft(part[self.size :])
                part = part[: self.size]
            try:
                answer = statement(part)
            except (Aborted, Refused) as error:
                if len(part) > 1:
                    half = len(part) // 2
                    waiting.extendleft((part[half:], part[:half]))
                    self.shrink(half, error)
                elif isinstance(error, Refused):
                    yield part, error
                else:
                    raise
            else:
                self.grow(len(part))
                yield part, answer

    def shrink(self, size: int, error: Aborted | Refused) -> None:
        """A larger portion than ``size`` was not carried out: take this from now on, and say so."""
        if isinstance(error, Refused):
            return  # one of the items is at fault, and not their number
        self.size = min(self.size, size)
        if error.usual:
            return
        self._notice(Count.TRANSACTIONS_ABORTED, f"{error}; the next one has {size} at most")

    def grow(self, carried_out: int) -> None:
        """A portion of so many items was carried out."""
        if carried_out >= self.size:
            self.size = min(self._most, self.size + max(1, self.size // _GROWTH))
