"""Values with secrets, which are hidden where the configuration is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from sluicemq.protocol.keys import KeyPair, read_key_file

REDIS_URL: Final = "a URL such as redis://HOST:6379/0 or rediss://USER:PASSWORD@HOST:6379/0"
_URL: Final = re.compile(
    r"(?P<scheme>rediss?)://(?:(?P<user>[^\s:@/?]*)(?::(?P<password>[^\s@/?]*))?@)?"
    r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?(?:/(?P<number>\d{0,4}))?"
)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret ``text``; ``str()`` of it shows three asterisks."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file and its keys, read at the start and with SIGHUP; ``str()`` of it is the path."""

    path: Path
    keys: KeyPair = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Read a key file; raises ValueError, which says what is wrong with it."""
        return cls(path, read_key_file(path))

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, repr=False)
class RedisUrl:
    """The URL of Redis: :attr:`text` is for the client; ``str()`` of it shows no password."""

    text: str = field(repr=False)
    shown: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a URL. Raises ValueError with the words after "expected", and no part of the text."""
        found = _URL.fullmatch(text)
        if found is None:
            raise ValueError(REDIS_URL)
        hidden = "" if found["password"] is None else ":***"
        who = "" if found["user"] is None else f"{found['user']}{hidden}@"
        return cls(text, f"{found['scheme']}://{who}{text[found.start('host') :]}")

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"RedisUrl('{self}')"
