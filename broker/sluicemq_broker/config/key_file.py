"""The file with the broker's own keys, read: it is read once, and again with SIGHUP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluicemq.protocol.keys import KeyPair, read_key_file


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file and its keys; ``str()`` of it is the path."""

    path: Path
    keys: KeyPair = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Read a key file; raises ValueError, which says what is wrong with it."""
        return cls(path, read_key_file(path))

    def __str__(self) -> str:
        return str(self.path)
