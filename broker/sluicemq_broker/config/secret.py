"""A value that is hidden where the configuration is shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret ``text``; ``str()`` of it shows three asterisks."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"
