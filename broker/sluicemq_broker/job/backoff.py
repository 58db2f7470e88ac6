"""How long a job that has failed waits before it is delivered again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple


class Backoff(NamedTuple):
    """A rule for waiting after the n-th delivery has failed; ``base`` and ``cap`` are seconds.

    ::

        exponential   base * factor ** (n - 1)
        linear        base * n
        fixed         base
        none          0: at once

    Never more than ``cap``. Then up to ``jitter`` of it is added or taken off (0.1: 10 %), so that
    jobs that failed together don't all come again together.
    """

    kind: str = "exponential"
    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1

    def wait(self, attempts: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this many deliveries; ``chance`` is evenly spread from 0 to 1."""
        return min(self._grown(max(1, attempts)), self.cap) * (1 + self.jitter * (2 * chance() - 1))

    def _grown(self, attempts: int) -> float:
        if self.kind == "exponential":
            return self._doubled(attempts - 1)
        return {"linear": self.base * attempts, "fixed": self.base}.get(self.kind, 0.0)

    def _doubled(self, times: int) -> float:
        try:
            return self.base * self.factor**times
        except OverflowError:
            return self.cap if self.base else 0.0
