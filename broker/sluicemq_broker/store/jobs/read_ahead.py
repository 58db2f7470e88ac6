"""What a fair queue knows of its tenants' next jobs beyond the last claim: their ids, read ahead.

To read the first jobs of a tenant takes MongoDB 0.25 ms, however few they are: with a hundred tenants and
ten jobs of each, half of what a claim takes. So of tenants of which claims want few, and that have many, the
ids of more are read, and claims to come have a look at these jobs only.

Which job is a tenant's first is read anew whenever a job has become ready. So a new tenant, a job of a higher
priority, and one that comes back go first as ever; and what was read ahead, which is all of one priority,
holds no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from sluicemq_broker.store.values import Document

#: Jobs of a tenant whose ids are read together: at first, for they may hold for one claim only, and at most.
AHEAD: Final = 64
_MOST_AHEAD: Final = 256
#: Of whom a claim wants more than this, the jobs are read as they are wanted: that takes no longer.
FEW_JOBS: Final = 16
#: Seconds for which ids are kept.
_KEPT: Final = 5.0


class _Line(NamedTuple):
    """The next jobs of a tenant that has more than were wanted of it; none: nobody has read them yet."""

    ids: Sequence[Any]
    read_at: float


class ReadAhead:
    """The next jobs of each tenant, as far as they are known. No MongoDB; ``now`` is the server's time."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self.depth = AHEAD
        """How many ids of a tenant to read next time: more while all that was read is claimed."""

    def covers(self, shares: Mapping[str, int]) -> bool:
        """True if so many jobs of each are known, and so it is known which jobs come next."""
        return all(
            share <= FEW_JOBS and (line := self._lines.get(each)) is not None and len(line.ids) >= share
            for each, share in shares.items()
        )

    def first(self, tenant: str) -> Any:
        """The id of the next job of one whose jobs are known."""
        return self._lines[tenant].ids[0]

    def next(
        self, shares: Mapping[str, int], firsts: Mapping[str, Any], now: float
    ) -> tuple[dict[str, Sequence[Any]], list[str]]:
        """The ids of so many jobs of each, of those of whom so many are known; whose ids are to be read now.

        ``firsts``: the ids of their first jobs; of whom there is none, a job was read just before these.
        """
        self.forget_old(now)
        known: dict[str, Sequence[Any]] = {}
        unknown: list[str] = []
        for tenant, share in shares.items():
            line = self._lines.pop(tenant, None)
            if line is None or share > FEW_JOBS:
                continue
            if line.ids and firsts.get(tenant, line.ids[0]) != line.ids[0]:
                continue  # others have come before these
            if len(line.ids) >= share:
                known[tenant] = line.ids[:share]
                self._lines[tenant] = _Line(line.ids[share:], line.read_at)
            elif share > 1:
                unknown.append(tenant)
        return known, unknown

    def read(self, tenant: str, found: Sequence[Document], share: int, now: float) -> list[Any]:
        """These were read: the ids of so many; the others are kept, as far as they are of one priority."""
        if behind := found[share:]:
            alike = takewhile(lambda each: each.get("priority") == behind[0].get("priority"), behind)
            self._lines[tenant] = _Line([each["_id"] for each in alike], now)
        return [each["_id"] for each in found[:share]]

    def more_of(self, tenants: Iterable[str], now: float) -> None:
        """These tenants filled their shares of a claim: more of their jobs may lie behind."""
        for tenant in tenants:
            self._lines.setdefault(tenant, _Line((), now))

    def used_up(self) -> None:
        """What was read was claimed, or nothing was read yet: go on with more."""
        self.depth = min(2 * self.depth, _MOST_AHEAD)

    def forget(self) -> None:
        """Jobs may have come to lie between those that are known."""
        self._lines.clear()
        self.depth = AHEAD

    def forget_old(self, now: float) -> None:
        """Keep nothing for long: of whom no more is claimed, nothing is to take memory."""
        old = [tenant for tenant, line in self._lines.items() if not 0 <= now - line.read_at < _KEPT]
        for tenant in old:
            del self._lines[tenant]
