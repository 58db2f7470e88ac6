"""Ids of tenants' next jobs, read ahead for the next claims of a fair queue.

To read the first jobs of a tenant takes MongoDB 0.25 ms, however few they are: with a hundred tenants and ten
jobs of each, half the time of a claim. So where claims want few jobs of a tenant that has many, more ids are
read at once, and later claims read these jobs by their ids.

Which job is a tenant's first is read again whenever a job has become ready. So a new tenant, a job of a
higher priority, and a job that returns come first as ever; ids that were read ahead, which are all of one
priority, are dropped then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from sluicemq_broker.store.values import Document

#: Ids of a tenant that are read together at first, as they may serve one claim only.
AHEAD: Final = 64
#: Where a claim wants more jobs of a tenant than this, they are read when they are wanted: that takes no
#: longer.
FEW_JOBS: Final = 16


class _Line(NamedTuple):
    """The next jobs of a tenant that has more than were wanted; without ids they are not read yet."""

    ids: Sequence[Any]
    read_at: float


class ReadAhead:
    """The next jobs of each tenant, as far as known. Asks no MongoDB; ``now`` is the server's time."""

    def __init__(self) -> None:
        self.lines: dict[str, _Line] = {}
        self.depth = AHEAD
        """How many ids of a tenant to read next time: more while all that were read are claimed."""

    def covers(self, shares: Mapping[str, int]) -> bool:
        """Return True if the next jobs of each tenant are known, as many as its share."""
        return all(
            share <= FEW_JOBS and (line := self.lines.get(tenant)) is not None and len(line.ids) >= share
            for tenant, share in shares.items()
        )

    def first(self, tenant: str) -> Any:
        """Return the id of the next job of a tenant whose jobs are known."""
        return self.lines[tenant].ids[0]

    def next(
        self, shares: Mapping[str, int], firsts: Mapping[str, Any], now: float
    ) -> tuple[dict[str, Sequence[Any]], list[str]]:
        """Take the ids of each tenant's next jobs, as many as its share; return the tenants to read, too.

        ``firsts``: the ids of their first jobs, where these were not read just before.
        """
        self.forget_old(now)
        known: dict[str, Sequence[Any]] = {}
        unknown: list[str] = []
        for tenant, share in shares.items():
            line = self.lines.pop(tenant, None)
            if line is None or share > FEW_JOBS:
                continue
            if line.ids and firsts.get(tenant, line.ids[0]) != line.ids[0]:
                continue  # others have come before these
            if len(line.ids) >= share:
                known[tenant] = line.ids[:share]
                self.lines[tenant] = _Line(line.ids[share:], line.read_at)
            elif share > 1:
                unknown.append(tenant)
        return known, unknown

    def read(self, tenant: str, found: Sequence[Document], share: int, now: float) -> list[Any]:
        """Return the first ids that were read, and keep those behind them that have one priority."""
        if behind := found[share:]:
            alike = takewhile(lambda document: document.get("priority") == behind[0].get("priority"), behind)
            self.lines[tenant] = _Line([document["_id"] for document in alike], now)
        return [document["_id"] for document in found[:share]]

    def more_of(self, tenants: Iterable[str], now: float) -> None:
        """Note tenants that filled their shares of a claim: more of their jobs may lie behind."""
        for tenant in tenants:
            self.lines.setdefault(tenant, _Line((), now))

    def used_up(self) -> None:
        """Read more next time: all that was read was claimed, or nothing was read yet."""
        self.depth = min(2 * self.depth, 256)

    def forget(self) -> None:
        """Drop all, as jobs may have become ready between those that are known."""
        self.lines.clear()
        self.depth = AHEAD

    def forget_old(self, now: float) -> None:
        """Drop ids that were read long ago, so that tenants without claims take no memory."""
        # Seconds for which ids are kept.
        old = [tenant for tenant, line in self.lines.items() if not 0 <= now - line.read_at < 5.0]
        for tenant in old:
            del self.lines[tenant]
