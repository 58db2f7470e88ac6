"""Whose turn it is in a fair queue: round and round its tenants, each for as many jobs as it weighs.

No clock, no MongoDB. A *round* gives every tenant that has jobs its weight in jobs, 1 unless the queue's
settings say more. Tenants are in the order of their names, and the next round begins behind the one that was
last: so between two turns of a tenant each other one has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_ALIKE: Mapping[str, int] = MappingProxyType({})


class RoundRobin:
    """Where a queue is in its round. What is remembered is one name, and how much is left of its turn."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._weights = weights or _ALIKE
        self.at: str | None = None
        """Whose turn it is, or was last."""
        self._left = 0

    def weight(self, tenant: str) -> int:
        """How many jobs a turn of this tenant has."""
        return self._weights.get(tenant, 1)

    def share(self, tenants: Sequence[str], count: int) -> dict[str, int]:
        """Give the next ``count`` places to these tenants, in the order of their names; how many each gets.

        Those that get none are not in the answer, which begins with whose turn it is.
        """
        if not tenants:
            return {}
        order = self._from_here(tenants)
        rounds, rest = divmod(count, sum(map(self.weight, order)))
        shares = {each: rounds * self.weight(each) for each in order}
        for each in order:
            if not rest:
                break
            turn = self._left if self._left and each == self.at else self.weight(each)
            given = min(turn, rest)
            shares[each] += given
            rest -= given
            self.at, self._left = each, turn - given
        if rest:  # what was left of the first one's turn was not a whole one: it has another
            shares[order[0]] += rest
            self.at, self._left = order[0], self.weight(order[0]) - rest
        return {each: share for each, share in shares.items() if share}

    def begin_with(self, tenant: str) -> None:
        """It is this tenant's turn: what it was given could not be taken."""
        self.at, self._left = tenant, self.weight(tenant)

    def _from_here(self, tenants: Sequence[str]) -> list[str]:
        """The same, the one first whose turn it is."""
        for place, each in enumerate(tenants):
            if self._is_next(each):
                return [*tenants[place:], *tenants[:place]]
        return list(tenants)

    def _is_next(self, tenant: str) -> bool:
        return self.at is None or tenant > self.at or (self._left > 0 and tenant == self.at)
