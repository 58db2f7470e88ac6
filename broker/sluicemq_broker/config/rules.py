"""Rules for the values of settings, like those of job options.

A value of TOML is taken as it is: a number in quotes is a text. A value of the environment, or of a flag, is
a text that is converted first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.hosts import problem_of_host
from sluicemq.protocol.keys import KEY_CHARACTERS, read_key
from sluicemq.protocol.names import PRINCIPAL_NAME_RULE, QUEUE_NAME_RULE, is_principal_name, is_queue_name
from sluicemq.protocol.options import OPTIONS, SCHEDULE_OPTIONS
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rules import Rule, duration, kept, number, whole
from sluicemq_broker.config import mongo_uri as uris
from sluicemq_broker.config.secrets import REDIS_URL, KeyFile, RedisUrl, Secret
from sluicemq_devices.sockets import Endpoint, parse_endpoint

#: Rules of the library that settings use, too.
__all__ = ["Rule", "duration", "number", "whole"]


class BusForm(StrEnum):
    """Transports of the event bus between brokers of one database; or a :class:`RedisUrl`."""

    AUTO = "auto"
    LOCAL = "local"
    MONGODB = "mongodb"
    OFF = "off"


#: Mechanisms of ZMTP, as settings have them.
NULL, PLAIN, CURVE = "null", "plain", "curve"
MECHANISMS: Final = (NULL, PLAIN, CURVE)
#: Job options that make no sense for many jobs: those that name one job, and ``reply``.
_OF_ONE: Final = {option.name for option in OPTIONS.values() if option.names_one} | {"reply"}
#: Characters of a secret, at least, so that it can't be guessed at one try a second.
SHORTEST_SECRET: Final = 16
_LONGEST_SECRET: Final = 256
_HTTP_HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*(:[0-9]{1,5})?")
_PASSWORD_HASH: Final = re.compile(
    r"\$argon2(id|i|d)\$v=\d{1,3}\$m=\d{1,7},t=\d{1,3},p=\d{1,3}\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,256}"
)
_DATABASE: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def size(most: int | None = None) -> Rule:
    """Return the rule of a number of bytes, at least one."""
    return whole(1, most, unit="bytes")


def seconds(*, above: float | None = None) -> Rule:
    """Return the rule of a duration: at least 0, or above a bound; at most ten years."""
    least = "at least 0" if above is None else f"more than {above:g}"
    expected = f"seconds, {least}, at most ten years"
    return duration(above or 0.0, TEN_YEARS, expected, above=above is not None)


def one_of(*words: str) -> Rule:
    """Return the rule of a choice of words."""
    expected = "one of " + ", ".join(f'"{word}"' for word in words)

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(expected + _hint(value, words))
        return str(value)

    return Rule(expected, check)


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the error for an unknown key, with the key that was probably meant."""
    names = sorted(known)
    return f"unknown key{_hint(key, names) or '; known are ' + ', '.join(names)}"


def _rule(expected: str) -> Callable[[Callable[[Any], Any]], Rule]:
    """Make a rule of a function; a ValueError without a text says what is expected."""

    def make(read: Callable[[Any], Any]) -> Rule:
        def checked(value: Any) -> Any:
            try:
                return read(value)
            except ValueError as error:
                raise ValueError(str(error) or expected) from error.__cause__

        return Rule(expected, checked)

    return make


def _several(expected: str, rule: Rule) -> Rule:
    """Return the rule of one value or a list of them."""

    def read(value: Any) -> tuple[Any, ...]:
        try:
            return tuple(map(rule.read, value if isinstance(value, list | tuple) else [value]))
        except ValueError:
            raise ValueError from None

    return _rule(expected)(read)


def _by_name(expected: str, name: Rule, rule: Rule) -> Rule:
    """Return the rule of a table of values by name, which a text has as ``acme=3,bolt=2``."""

    def read(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(map(name.holds, value)):
            raise ValueError
        return MappingProxyType({key: rule(item) for key, item in value.items()})

    def spelt(text: str) -> Any:
        pairs = [pair.rpartition("=") for pair in text.split(",")]
        return {key.strip(): rule.of_text(item) for key, _, item in pairs}

    return _rule(expected)(read)._replace(spelt=spelt)


def _name(what: str) -> Rule:
    return kept(f"a {what}'s name: {QUEUE_NAME_RULE}", is_queue_name)


flag = kept("true or false", lambda value: isinstance(value, bool))._replace(
    spelt=lambda text: _FLAGS.get(text.strip().lower(), text)
)
text = kept("a string", lambda value: isinstance(value, str))
queue_name, stream_name, subscription_name = map(_name, ("queue", "stream", "subscription"))
principal_name = kept(f"a principal's name: {PRINCIPAL_NAME_RULE}", is_principal_name)
database_name = kept(
    "the name of a database: 1 to 63 of A-Z a-z 0-9 _ -",
    lambda value: isinstance(value, str) and _DATABASE.fullmatch(value) is not None,
)


@_rule("an endpoint such as tcp://127.0.0.1:5551")
def endpoint(value: Any) -> Endpoint:
    """Read one endpoint."""
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        raise ValueError("one endpoint such as tcp://127.0.0.1:5551")  # noqa: TRY004
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise ValueError(f"an endpoint: {error}") from error


@_rule('a host name or an address without a port, as in "0.0.0.0" or "::1"')
def host(value: Any) -> str:
    """Read a host; ``*`` is every interface."""
    bare = value.removeprefix("[").removesuffix("]") if isinstance(value, str) else ""
    if value != "*" and problem_of_host(f"[{bare}]" if ":" in bare else str(value)):
        raise ValueError
    return bare


@_rule('a host and a port, as in "127.0.0.1:5580", or "" for no such door')
def http_address(value: Any) -> str:
    """Read the address of the HTTP door; empty: none."""
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004
    place = value.strip().removeprefix("http://").removeprefix("tcp://").removesuffix("/")
    if place:
        try:
            parse_endpoint(f"tcp://{place}")
        except ValueError:
            raise ValueError from None
    return place


@_rule(
    'names of hosts, such as ["mq.example.com", "mq.example.com:8443"], or one text with commas between them'
)
def http_hosts(value: Any) -> tuple[str, ...]:
    """Read names of hosts, in lower case."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(item, str) for item in given):
        raise ValueError
    names = tuple(name for item in given if (name := item.strip().lower()))
    if not all(map(_HTTP_HOST.fullmatch, names)):
        raise ValueError
    return names


@_rule(f"a secret of {SHORTEST_SECRET} to {_LONGEST_SECRET} visible characters of ASCII")
def secret(value: Any) -> Secret:
    """Read a secret that fits into a header, and into the field of a form."""
    given = value.text if isinstance(value, Secret) else value
    if not isinstance(given, str) or not SHORTEST_SECRET <= len(given) <= _LONGEST_SECRET:
        raise ValueError
    if not all("!" <= character <= "~" for character in given):
        raise ValueError
    return Secret(given)


@_rule(f"{', '.join(MECHANISMS)}, or a list of them")
def mechanisms(value: Any) -> tuple[str, ...]:
    """Read the mechanisms of a door, one or a list."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise ValueError
    for item in given:
        if item not in MECHANISMS:
            raise ValueError(mechanisms.expected + _hint(item, MECHANISMS))
    return tuple(mechanism for mechanism in MECHANISMS if mechanism in given)


permissions = Rule(
    '"all", "none", or actions with patterns of names, as "push=mail.* operate" or { push = ["mail.*"] }',
    Permissions.read,
)


@_rule("a key file, as `sluicemq key new --out FILE` makes it")
def key_file(value: Any) -> KeyFile:
    """Read a key file."""
    if isinstance(value, KeyFile):
        return value
    path = _path(value)
    try:
        return KeyFile.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"a key file: {error}") from None


@_rule(f"a public key of {KEY_CHARACTERS} characters in Z85")
def public_key(value: Any) -> str:
    """Read a public key, which stays a text."""
    try:
        read_key(value)
    except ValueError:
        raise ValueError from None
    return str(value)


public_keys = _several(f"public keys of {KEY_CHARACTERS} characters in Z85, one or a list", public_key)


@_rule("the argon2 hash of a password, as $argon2id$v=19$m=65536,t=3,p=4$...$...")
def password_hash(value: Any) -> Secret:
    """Read the hash of a password, which stays hidden."""
    given = value.text if isinstance(value, Secret) else value
    if not isinstance(given, str) or not _PASSWORD_HASH.fullmatch(given):
        raise ValueError
    return Secret(given)


token_hashes = _several(
    "hashes of tokens, one or a list, each as sha256: and 64 hexadecimal digits",
    kept("", lambda value: isinstance(value, str) and re.fullmatch("sha256:[0-9a-f]{64}", value) is not None),
)
#: Words that are expected where a wrong value may be a secret: errors don't repeat it.
HIDDEN: Final = frozenset(
    rule.expected for rule in (secret, public_key, public_keys, password_hash, token_hashes)
)


@_rule("a folder")
def folder(value: Any) -> Path:
    """Read the path of a folder; ``~`` is the user's home."""
    return _path(value)


@_rule("the path of a file")
def file(value: Any) -> Path:
    """Read the path of a file; ``~`` is the user's home. A URI is refused: it belongs into the file."""
    if "://" in str(value):
        raise ValueError
    return _path(value)


@_rule(uris.EXPECTED)
def mongodb_uri(value: Any) -> uris.MongoUri:
    """Read where MongoDB is."""
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004
    return uris.MongoUri.read(value)


@_rule(f"one of {', '.join(BusForm)}, or {REDIS_URL}")
def event_bus(value: Any) -> BusForm | RedisUrl:
    """Read the transport of events."""
    if isinstance(value, RedisUrl):
        return value
    if value in list(BusForm):
        return BusForm(value)
    if isinstance(value, str) and value.startswith("redis"):
        return RedisUrl.read(value)
    hint = _hint(value, BusForm)
    raise ValueError(event_bus.expected + hint if hint else "")


topics = _several(
    'topics as a reader names them, such as "orders." or "orders.*.paid", or a list of them', text
)
database_names = _several("names of databases: 1 to 63 of A-Z a-z 0-9 _ - each", database_name)
#: Weights of tenants.
weights = _by_name("a table of tenants and whole numbers, 1 to 1000", OPTIONS["tenant"].rule, whole(1, 1000))
kind_time_limits = _by_name(
    "a table of kinds of jobs and seconds", OPTIONS["kind"].rule, OPTIONS["hard_time_limit"].rule
)


@_rule("a table of job options")
def job_headers(value: Any) -> Mapping[str, Any]:
    """Read options for all jobs of a route."""
    if not isinstance(value, Mapping):
        raise ValueError  # noqa: TRY004
    allowed = OPTIONS.keys() - _OF_ONE
    for key in value.keys() - allowed:
        raise ValueError(f"{job_headers.expected}, of which {key} is none for many jobs{_hint(key, allowed)}")
    return MappingProxyType(_options(value, "{expected} as {key}"))


@_rule("a table of the jobs' options")
def schedule_options(value: Any) -> dict[str, Any]:
    """Read options for the jobs of a schedule."""
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004
    for key in value.keys() - SCHEDULE_OPTIONS:
        raise ValueError(f"options of its jobs: {key!r}: {unknown(key, SCHEDULE_OPTIONS)}")
    return _options(value, "options of its jobs: {key}: {expected}")


def _options(given: Mapping[str, Any], refusal: str) -> dict[str, Any]:
    """Return options of jobs as their rules read them."""
    read = {}
    for key, value in given.items():
        try:
            read[key] = OPTIONS[key].rule(value)
        except ValueError as error:
            raise ValueError(refusal.format(key=key, expected=error)) from None
    return read


def _path(value: Any) -> Path:
    """Return an absolute path; ``~`` is the user's home, ``~name`` that of another user."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError:  # there is no such user
        raise ValueError from None


def _hint(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
