"""Keys of CURVE: as text in Z85 (RFC 32), as pairs, and as key files.

A key file is TOML that only its owner can read::

    public_key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    secret_key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from dataclasses import dataclass, field
from typing import Any, Final

from sluicemq.protocol.secret_files import read_secret, write_secret

KEY_BYTES: Final = 32
KEY_CHARACTERS: Final = 40

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_HEAD: Final = """\
# Key pair of SluiceMQ (CURVE). The public key may be known: a broker lists it for a principal, and clients
# have the broker's as their server key. The secret key acts in your name: keep this file to yourself.
"""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret one, 32 bytes each; the secret is not in its repr."""

    public: bytes
    secret: bytes = field(repr=False)


def encode(data: bytes) -> str:
    """Return bytes as Z85: five characters for each four bytes; their number is a multiple of four."""
    if len(data) % 4:
        raise ValueError(f"Z85 has a multiple of 4 bytes, not {len(data)}")
    words = [int.from_bytes(data[at : at + 4]) for at in range(0, len(data), 4)]
    return "".join(_ALPHABET[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def decode(text: str) -> bytes:
    """Return the bytes of a text in Z85; raises ValueError, which does not repeat the text."""
    if len(text) % 5 or not all(map(_VALUES.__contains__, text)):
        raise ValueError("no text in Z85")
    data = bytearray()
    for at in range(0, len(text), 5):
        word = 0
        for character in text[at : at + 5]:
            word = word * 85 + _VALUES[character]
        if word >= 1 << 32:
            raise ValueError("no text in Z85")
        data += word.to_bytes(4)
    return bytes(data)


def read_key(text: Any) -> bytes:
    """Return the 32 bytes of a key in Z85; raises ValueError, which does not repeat it: it may be secret."""
    if isinstance(text, str) and len(text) == KEY_CHARACTERS:
        try:
            return decode(text)
        except ValueError:
            pass
    raise ValueError(f"a key of {KEY_CHARACTERS} characters in Z85")


def key_id(public: bytes) -> str:
    """Return the short name of a public key, for logs and lists: 12 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:12]


def read_key_file(path: str | os.PathLike[str]) -> KeyPair:
    """Read a key file; raises ValueError with what is wrong with it, or who else can read it."""
    text = read_secret(path, "key file")
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):  # a sentence of TOML's may repeat the text
        raise ValueError(f"the key file {os.fspath(path)} is no TOML") from None
    pair = []
    for name in ("public_key", "secret_key"):
        try:
            pair.append(read_key(found.get(name)))
        except ValueError as error:
            raise ValueError(f"the key file {os.fspath(path)} needs {name} = {error}") from None
    return KeyPair(*pair)


def write_key_file(path: str | os.PathLike[str], pair: KeyPair) -> None:
    """Make a key file, for its owner alone; raises FileExistsError rather than write over one."""
    write_secret(path, key_file(pair))


def key_file(pair: KeyPair) -> str:
    """Return the text of a key file."""
    return f'{_HEAD}public_key = "{encode(pair.public)}"\nsecret_key = "{encode(pair.secret)}"\n'
