"""Round robin over the tenants of a fair queue, by weight.

No clock, no MongoDB. A *round* gives every tenant that has jobs its weight in jobs: 1, unless the queue's
settings say more. Tenants take turns in the order of their names, and the next round begins behind the last
one served, so between two turns of a tenant every other one has a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class RoundRobin:
    """Position of a queue in its round: one name, and the jobs left of its turn."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._weights = weights or {}
        self.at: str | None = None
        """Tenant whose turn it is, or was last."""
        self._left = 0

    def weight(self, tenant: str) -> int:
        """Return how many jobs a turn of this tenant has."""
        return self._weights.get(tenant, 1)

    def share(self, tenants: Sequence[str], count: int) -> dict[str, int]:
        """Divide the next ``count`` places among these tenants, sorted by name; return how many each gets.

        The answer begins with the tenant whose turn it is, and leaves out tenants that get none.
        """
        if not tenants:
            return {}
        order = self._from_here(tenants)
        rounds, rest = divmod(count, sum(map(self.weight, order)))
        shares = {tenant: rounds * self.weight(tenant) for tenant in order}
        for tenant in order:
            if not rest:
                break
            turn = self._left if self._left and tenant == self.at else self.weight(tenant)
            given = min(turn, rest)
            shares[tenant] += given
            rest -= given
            self.at, self._left = tenant, turn - given
        if rest:  # the first one had only the rest of a turn before: it has another one
            shares[order[0]] += rest
            self.at, self._left = order[0], self.weight(order[0]) - rest
        return {tenant: share for tenant, share in shares.items() if share}

    def begin_with(self, tenant: str) -> None:
        """Give the turn to this tenant: the places it was given could not be used."""
        self.at, self._left = tenant, self.weight(tenant)

    def _from_here(self, tenants: Sequence[str]) -> list[str]:
        """Return the tenants in the order of their turns, from the next one on."""
        for place, tenant in enumerate(tenants):
            if self._is_next(tenant):
                return [*tenants[place:], *tenants[:place]]
        return list(tenants)

    def _is_next(self, tenant: str) -> bool:
        return self.at is None or tenant > self.at or (self._left > 0 and tenant == self.at)
