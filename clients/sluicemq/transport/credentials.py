"""Credentials of a client: a key pair and the broker's key for CURVE, or a user and a password for PLAIN.

The strongest place that has one of them decides between CURVE and PLAIN; weaker ones may complete it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

import zmq

from sluicemq import arguments
from sluicemq.protocol.keys import KeyPair, encode, read_key, read_key_file
from sluicemq.protocol.readable import is_utf8
from sluicemq.protocol.secret_files import read_secret
from sluicemq.transport.sources import VARIABLES, Source, first

_CURVE: Final = ("key_file", "server_key")
_PLAIN: Final = ("user", "password", "password_file")
#: Bytes of a user or a password in PLAIN, at most.
_LONGEST: Final = 255


class AccessOptions(TypedDict, total=False):
    """Keywords of everything that connects to a broker, beside its endpoint."""

    key_file: str | os.PathLike[str] | None
    """The file with the client's own key pair, as ``sluicemq key new`` makes it."""
    server_key: str | None
    """The broker's public key, 40 characters in Z85. Without a ``key_file``: encrypted, but anonymous."""
    user: str | None
    password: str | None
    profile: str | None
    """The name of a profile in ``~/.config/sluicemq/config.toml``."""


class Credentials(NamedTuple):
    """Credentials, as the fields of an ``Access``."""

    keys: KeyPair | None = None
    server_key: bytes = b""
    user: str = ""
    password: str = ""


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that are not None; raises TypeError or ValueError."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if key not in AccessOptions.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {key!r}")
        if key != "key_file":
            arguments.text(key, value)
    return given


def credentials(sources: Sequence[Source], ask: Callable[[str], str] | None) -> Credentials:
    """Return the credentials; ``ask(user)`` returns a password that no place has."""
    found = first(sources, *_CURVE, *_PLAIN)
    if found is None:
        return Credentials()
    source, key = found
    if key not in _CURVE:
        return _of_plain(sources, ask)
    if also := first([source], *_PLAIN):
        raise source.wrong(key, f"give a key or a user, not both: {also[1]} is there, too")
    return _of_curve(sources)


def _of_curve(sources: Sequence[Source], has: Callable[[str], bool] = zmq.has) -> Credentials:
    if not has("curve"):
        raise ValueError(
            f"no keys can be used, since libzmq {zmq.zmq_version()} was built without CURVE: "
            "that of the wheels of pyzmq has it"
        )
    file, server = first(sources, "key_file"), first(sources, "server_key")
    if server is None:
        where = file[0] if file else sources[0]
        raise where.wrong("key_file", "it needs a server_key beside it, the broker's public key")
    try:
        server_key = read_key(server[0].values["server_key"])
    except ValueError as error:
        raise server[0].wrong("server_key", f"expected {error}") from None
    return Credentials(_pair(file[0]) if file else None, server_key)


def _pair(source: Source) -> KeyPair:
    path = source.values["key_file"]
    try:
        pair = read_key_file(os.path.expanduser(path))  # noqa: PTH111 - it may be text or a path
    except ValueError as error:
        raise source.wrong("key_file", error) from error
    if read_key(zmq.curve_public(encode(pair.secret).encode()).decode()) != pair.public:
        raise source.wrong("key_file", f"the public and the secret key in {path} are no pair")
    return pair


def _of_plain(sources: Sequence[Source], ask: Callable[[str], str] | None) -> Credentials:
    found = first(sources, "user")
    if found is None:
        raise ValueError("a password needs a user beside it")
    source, key = found
    user = _bounded(source, key, source.values[key])
    if place := first(sources, "password", "password_file"):
        return Credentials(user=user, password=_password(*place))
    if ask is not None:
        return Credentials(user=user, password=ask(user))
    where = f"password, {VARIABLES['password_file']}, or password_file in a profile"
    raise source.wrong(key, f"it needs a password beside it: {where}")


def _password(source: Source, key: str) -> str:
    value = source.values[key]
    if key == "password_file":
        try:
            value = read_secret(os.path.expanduser(value), "password file").rstrip("\r\n")  # noqa: PTH111
        except ValueError as error:
            raise source.wrong(key, error) from error
    return _bounded(source, key, value)


def _bounded(source: Source, key: str, value: str) -> str:
    if not is_utf8(value) or not 1 <= len(value.encode()) <= _LONGEST:
        raise source.wrong(key, f"expected 1 to {_LONGEST} bytes of UTF-8")
    return value
