"""Shares of a worker's ``prefetch``: each of its connections has one, and together they never exceed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from sluicemq.job import Job
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.alone import ALONE, Alone


def shares(prefetch: int, connected: int) -> list[int]:
    """Return the share of each connection; with fewer jobs than connections the last ones stand by with 0."""
    least, more = divmod(prefetch, connected) if connected else (0, 0)
    return [least + (at < more) for at in range(connected)]


class Grant(NamedTuple):
    """The share of a part for one epoch of its connection.

    ``most``: the largest one since the last that the part has seen; others may still be on their way.
    """

    epoch: int
    share: int = 0
    most: int = 0


class Part(Protocol):
    """One connection's part of a worker. Its attributes are read by another thread."""

    open: int
    """The epoch of its connection, while that takes part; else 0."""
    share: int | None
    """The jobs that it has requested at most; None before the first request of an epoch."""
    seen: Grant | None
    """The grant that it acted on last."""

    @property
    def bound(self) -> int:
        """Return how many jobs it has or may still get."""

    @property
    def busy(self) -> bool:
        """Return whether a verdict or another request is under way."""

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Run a function in the I/O thread of its connection."""

    def set_share(self, grant: Grant) -> None:
        """Set its share, if its connection is still of this epoch, then ``seen``; in its I/O thread."""

    def give_back(self) -> None:
        """Give back the jobs that no handler has begun, as another part has one to run alone."""


class Shares:
    """Shares out a prefetch in the I/O thread of the first part, so that no lock is needed.

    A share grows only by what no other part has or may still get. A connection that is to have fewer keeps
    its jobs until they are settled.

    ``at_work``: the job that each thread of the worker has begun. ``alone``: of this process. While a part of
    it has a job that is to run alone, all others have no share.
    """

    def __init__(self, prefetch: int, at_work: Sequence[Job | None], alone: Alone = ALONE) -> None:
        self.alone = alone
        self.stuck = False
        """Jobs were given back as no handler could begin them, and none has ended since."""
        self._prefetch = prefetch
        self.at_work = at_work
        self.parts: list[Part] = []
        self._grants: dict[Part, Grant] = {}  # in the order in which they were opened
        self._asked = False

    def add(self, part: Part) -> None:
        """Share with this part, too; before the worker starts."""
        self.parts.append(part)

    def changed(self) -> None:
        """Share out again, soon: a part was opened or lost, or has fewer jobs; from any thread."""
        if not self._asked:
            self._asked = True
            with suppress(SluiceError):  # the worker ends
                self.parts[0].call(self._share_out)

    def handler_ended(self) -> None:
        """Request jobs again, as a handler has ended; from any thread."""
        self.stuck = False
        self.changed()

    def _share_out(self) -> None:
        self._asked = False
        self._note_opened()
        total = self._total
        free = max(0, total - sum(map(self._bound, self.parts)))
        wanted = self._wanted(total)
        for (part, grant), share in zip(list(self._grants.items()), wanted, strict=True):
            bound = self._bound(part)
            granted = min(share, bound + free)
            free -= max(0, granted - bound)
            if granted != grant.share or part.share != granted:
                most = granted if part.seen is grant else max(granted, grant.most)
                self._grants[part] = Grant(grant.epoch, granted, most)
                with suppress(SluiceError):
                    part.call(part.set_share, self._grants[part])

    def _wanted(self, total: int) -> list[int]:
        """Return the share of each part, in the order in which they were opened."""
        chosen = self.alone.part
        if chosen is None:
            return shares(total, len(self._grants))
        for part in self._grants:
            if part is not chosen:
                with suppress(SluiceError):
                    part.call(part.give_back)
        return [total if part is chosen and self.alone.may_request(part) else 0 for part in self._grants]

    @property
    def _total(self) -> int:
        """Return how many jobs to request: none while no handler could begin one.

        A handler may still be at a job of a lost connection, for any time: its broker no longer counts that
        job.
        """
        jobs = list(self.at_work)
        void = sum([job is not None and not job.is_held for job in jobs])
        return 0 if self.stuck or void == len(jobs) else max(0, self._prefetch - void)

    def _note_opened(self) -> None:
        for part in self.parts:
            epoch, grant = part.open, self._grants.get(part)
            if grant is not None and grant.epoch != epoch:
                del self._grants[part]
                grant = None
            if epoch and grant is None:
                self._grants[part] = Grant(epoch)

    def _bound(self, part: Part) -> int:
        grant = self._grants.get(part)
        if grant is None:
            return part.bound
        return max(grant.share if part.seen is grant else grant.most, part.bound)
