"""Decisions that are not written yet: merged into batches, counted, and written for each owner id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sluicemq.protocol.errors import DifferentStoreError, SluiceError, UncertainError
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import OfJob, Portions, Refused

Item = TypeVar("Item")
Entry = TypeVar("Entry", bound=OfJob)


class PendingWrites(Generic[Item]):
    """Items of one queue that wait for their statement, counted in ``Memory.verdicts`` until it is answered.

    The queue hands out nothing while its share of that is full. ``bytes_of`` gives the
    bytes that items hold; ``batches`` are the options of a :class:`Batcher`.
    """

    def __init__(
        self,
        core: QueueCore,
        write: Callable[[list[Item]], object],
        bytes_of: Callable[[Sequence[Item]], int] = lambda _items: 0,
        **batches: Any,
    ) -> None:
        self._verdicts = core.memory.verdicts
        self._queue = core.dispatch
        self._statement = write
        self._bytes_of = bytes_of
        self.batcher: Batcher[Item] = Batcher(self._write, **batches)

    def add(self, items: Sequence[Item]) -> None:
        """Write these soon; never blocks."""
        if items:
            self._verdicts.take(self._queue, len(items), self._bytes_of(items))
            self.batcher.extend(items)

    def _write(self, items: list[Item]) -> None:
        size = self._bytes_of(items)
        try:
            self._statement(items)
        finally:
            self._verdicts.give(self._queue, len(items), size)


def weigh(count: int, size: int, most: int, most_bytes: int) -> int:
    """Return how much of a batch of ``most`` items and ``most_bytes`` bytes these take, in items."""
    return count + size * most // most_bytes


def by_owner(
    items: Iterable[Item], owner: Callable[[Item], str] = attrgetter("reservation.owner")
) -> dict[str, list[Item]]:
    """Return jobs, or entries about jobs, under each owner id: a statement names one."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[owner(item)].append(item)
    return groups


def write_held(
    core: QueueCore, owner: str, statement: Callable[[], dict[str, SluiceError]]
) -> dict[str, SluiceError]:
    """Send a statement about jobs of one owner until it is answered; returns its problems by job id.

    A job that is gone after a lost reply was written by us, if nobody else can have had it.
    """
    doubts: list[bool] = []
    problems = core.retry.run(statement, lambda: doubts.append(True))
    if doubts and problems and core.retry.run(lambda: core.owners.keeps(owner)):
        return {job_id: why for job_id, why in problems.items() if not isinstance(why, UncertainError)}
    return problems


def write_in_portions(
    core: QueueCore,
    portions: Portions,
    entries: Iterable[Entry],
    place: Callable[[Entry], Any],
    statement: Callable[[Sequence[Entry]], dict[str, SluiceError]],
) -> dict[str, SluiceError]:
    """Write these in transactions, for each owner in the order of their ``place``; returns problems by id."""

    def write(part: Sequence[Entry]) -> dict[str, SluiceError]:
        try:
            return write_held(core, part[0].job.owner, lambda: statement(part))
        except DifferentStoreError as error:
            return {entry.job.id: error for entry in part}

    problems: dict[str, SluiceError] = {}
    for group in by_owner(entries, attrgetter("job.owner")).values():
        group.sort(key=place)
        for part, answer in portions.carry_out(group, write):
            problems |= {entry.job.id: answer for entry in part} if isinstance(answer, Refused) else answer
    return problems
