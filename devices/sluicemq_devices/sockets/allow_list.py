"""Guards of a device alone: a file has the public keys that get in, and a server that is dialled has one.

A line of the file is a public key, and maybe a name behind it; a line that begins with # is a comment::

    # who may send
    Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID mailer
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluicemq.protocol.keys import KeyPair, encode, key_id, read_key
from sluicemq_devices.sockets.guard import Decide, Guard
from sluicemq_devices.zmtp import CURVE, Credentials


class AllowList(Guard):
    """Lets in who has one of the keys in a file; ``who`` of a connection is its public key."""

    mechanisms = frozenset({CURVE})

    def __init__(self, keys: KeyPair, path: Path) -> None:
        """``keys``: of this end. Raises ValueError, which says what is wrong with the file."""
        self.secret_key = keys.secret
        self._path = path
        self._allowed = _read(path)

    def read_again(self) -> None:
        """Read the file again; after a ValueError the keys that were read before are still allowed."""
        self._allowed = _read(self._path)

    def is_over(self, who: Any) -> bool:
        """Return whether the key of a connection is allowed no more."""
        return who not in self._allowed

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        """Let the peer in if its key is in the file."""
        del peer
        key = credentials.key
        known = key in self._allowed
        decide(key, "" if known else f"its key {encode(key)} ({key_id(key)}) is not in {self._path}")


class Dialling(Guard):
    """The rule of an end that connects to a server of CURVE: the server must have this key."""

    def __init__(self, server_key: bytes, own: KeyPair | None = None) -> None:
        """``own``: keys of this end; None: it has others for each connection."""
        self.server_key = server_key
        self.secret_key = own.secret if own else b""


def _read(path: Path) -> frozenset[bytes]:
    """Return the keys in a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"can't read {path}: {getattr(error, 'strerror', '') or error}") from None
    return frozenset(key for number, line in enumerate(lines, 1) for key in _key(line, f"{path}:{number}"))


def _key(line: str, place: str) -> list[bytes]:
    """Return the key of a line; none for a comment. No key begins with #: its value would be too large."""
    words = line.split(maxsplit=1)
    if not words or words[0].startswith("#"):
        return []
    try:
        return [read_key(words[0])]
    except ValueError as error:
        raise ValueError(f"{place}: a line begins with {error}, or with # if it is a comment") from None
