"""The URL of Redis, which never shows its password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self

EXPECTED: Final = "a URL such as redis://HOST:6379/0 or rediss://USER:PASSWORD@HOST:6379/0"
_URL: Final = re.compile(
    r"(?P<scheme>rediss?)://(?:(?P<user>[^\s:@/?]*)(?::(?P<password>[^\s@/?]*))?@)?"
    r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?(?:/(?P<number>\d{0,4}))?"
)


@dataclass(frozen=True, slots=True, repr=False)
class RedisUrl:
    """A URL: :attr:`text` is for the client; ``str()`` of it shows no password."""

    text: str = field(repr=False)
    shown: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a URL. Raises ValueError with the words after "expected", and no part of the text."""
        found = _URL.fullmatch(text)
        if found is None:
            raise ValueError(EXPECTED)
        hidden = "" if found["password"] is None else ":***"
        who = "" if found["user"] is None else f"{found['user']}{hidden}@"
        return cls(text, f"{found['scheme']}://{who}{text[found.start('host') :]}")

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"RedisUrl('{self}')"
