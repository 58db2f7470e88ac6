"""A value that nobody may read where the configuration is shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """``text`` is what it is; as a string it shows nothing of it."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"
