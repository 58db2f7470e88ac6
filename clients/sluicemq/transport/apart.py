"""Endpoints that the connections of one worker have taken, so that each leads to another broker."""

from __future__ import annotations

from collections.abc import Sequence


class Apart:
    """Endpoints, each with its taker; used by the I/O threads of several connections.

    Every operation is one on a dict, which is atomic.
    """

    def __init__(self) -> None:
        self._takers: dict[str, object] = {}

    def take(self, endpoint: str, taker: object) -> bool:
        """Take an endpoint; False if another has it."""
        return self._takers.setdefault(endpoint, taker) is taker

    def leave(self, endpoint: str, taker: object) -> None:
        """Let others take an endpoint."""
        if self._takers.get(endpoint) is taker:
            del self._takers[endpoint]

    def free(self, endpoints: Sequence[str]) -> list[str]:
        """Return the endpoints that nobody has taken."""
        return [each for each in endpoints if each not in self._takers]
