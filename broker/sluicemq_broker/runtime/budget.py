"""How much of something may be used at once, counted."""

from __future__ import annotations


class Budget:
    """An amount that all queues share: bytes of staged jobs, say. ``used`` may pass ``most`` by one step."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self, amount: int) -> None:
        """Use more; less, if it is negative."""
        self.used += amount

    @property
    def full(self) -> bool:
        """True if nothing is left."""
        return self.used >= self.most
