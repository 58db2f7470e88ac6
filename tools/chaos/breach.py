"""A promise that was not kept, with what shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Breach:
    """``kind``: such as lost, again, order, stuck; ``evidence``: lines of books and logs, documents."""

    kind: str
    text: str
    evidence: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.text}", *self.evidence])
