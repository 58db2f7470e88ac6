"""Rules for the values of settings, like those of job options.

A value of TOML is taken as it is: a number in quotes is a text. A value of the environment, or of a flag, is
a text that is converted first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.hosts import problem_of_host
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.options import OPTIONS, SCHEDULE_OPTIONS
from sluicemq.protocol.rules import Rule, duration, number, whole
from sluicemq_broker.config import mongo_uri as uris
from sluicemq_broker.config import redis_url
from sluicemq_broker.config.secret import Secret
from sluicemq_devices.sockets import Endpoint, parse_endpoint

#: Rules of the library that settings use, too.
__all__ = ["Rule", "duration", "number", "whole"]


class BusForm(StrEnum):
    """Transports of the event bus between brokers of one database; or a :class:`RedisUrl`."""

    AUTO = "auto"
    LOCAL = "local"
    MONGODB = "mongodb"
    OFF = "off"


#: Job options that make no sense for many jobs: those that name one job, and ``reply``.
_OF_ONE: Final = {each.name for each in OPTIONS.values() if each.names_one} | {"reply"}

#: Characters of a secret, at least, so that it can't be guessed at one try a second.
SHORTEST_SECRET: Final = 16

_HTTP_HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*(:[0-9]{1,5})?")

_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
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


def optional(rule: Rule) -> Rule:
    """Return a rule that takes None, too."""
    return rule._replace(read=lambda value: None if value is None else rule(value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(flag.expected)  # noqa: TRY004
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a string")
    return value


def _database_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", value):
        raise ValueError(database_name.expected)
    return value


def _queue_name(value: Any) -> str:
    if not is_queue_name(value):
        raise ValueError(queue_name.expected)
    return str(value)


def _topics(value: Any) -> tuple[str, ...]:
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(each, str) for each in given):
        raise ValueError(topics.expected)
    return given


def _http_hosts(value: Any) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError(http_hosts.expected)
    names = tuple(name for each in given if (name := each.strip().lower()))
    if not all(map(_HTTP_HOST.fullmatch, names)):
        raise ValueError(http_hosts.expected)
    return names


def _job_headers(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(job_headers.expected)  # noqa: TRY004
    for key in value.keys() - (OPTIONS.keys() - _OF_ONE):
        hint = _hint(key, OPTIONS.keys() - _OF_ONE)
        raise ValueError(f"{job_headers.expected}, of which {key} is none for many jobs{hint}")
    return MappingProxyType(_options(value, "{expected} as {key}"))


def _weights(value: Any) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError(weights.expected)  # noqa: TRY004
    names = OPTIONS["tenant"].rule
    if not all(names.holds(each) for each in value):
        raise ValueError(weights.expected)
    return MappingProxyType({name: _weight(each) for name, each in value.items()})


def _folder(value: Any) -> Path:
    return Path(_text(value) if isinstance(value, str) else value).expanduser().absolute()


def _mongodb_uri(value: Any) -> uris.MongoUri:
    if not isinstance(value, str):
        raise ValueError(uris.EXPECTED)  # noqa: TRY004
    return uris.MongoUri.read(value)


def _event_bus(value: Any) -> BusForm | redis_url.RedisUrl:
    if isinstance(value, redis_url.RedisUrl):
        return value
    if value in list(BusForm):
        return BusForm(value)
    if isinstance(value, str) and value.startswith("redis"):
        return redis_url.RedisUrl.read(value)
    raise ValueError(event_bus.expected + _hint(value, BusForm))


def _host(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(host.expected)  # noqa: TRY004
    bare = value.removeprefix("[").removesuffix("]")
    if value != "*" and problem_of_host(f"[{bare}]" if ":" in bare else value):
        raise ValueError(host.expected)
    return bare


def _bound_endpoint(value: Any) -> Endpoint:
    endpoint = _endpoint(value)
    if not endpoint.bind:
        raise ValueError(bound_endpoint.expected)
    return endpoint


def _http_address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(http_address.expected)  # noqa: TRY004
    place = value.strip().removeprefix("http://").removeprefix("tcp://").removesuffix("/")
    if place:
        try:
            parse_endpoint(f"tcp://{place}")
        except ValueError:
            raise ValueError(http_address.expected) from None
    return place


def _secret(value: Any) -> Secret:
    given = value.text if isinstance(value, Secret) else value
    if not isinstance(given, str) or not SHORTEST_SECRET <= len(given) <= 256 or not _is_visible(given):
        raise ValueError(secret.expected)
    return Secret(given)


def _is_visible(text: str) -> bool:
    """Return True for text that fits into a header, and into the field of a form."""
    return all("!" <= character <= "~" for character in text)


def _endpoints(value: Any) -> tuple[Endpoint, ...]:
    return tuple(_endpoint(each) for each in (value if isinstance(value, list | tuple) else [value]))


def _schedule_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(schedule_options.expected)  # noqa: TRY004
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


flag = Rule("true or false", _flag, spelt=lambda text: _WORDS.get(text.strip().lower(), text))
text = Rule("a string", lambda value: value if isinstance(value, str) else _text(value))
schedule_options = Rule("a table of the jobs' options", _schedule_options)
database_name = Rule("the name of a database: 1 to 63 of A-Z a-z 0-9 _ -", _database_name)
queue_name = Rule(f"a queue's name: {QUEUE_NAME_RULE}", _queue_name)
stream_name = Rule(f"a stream's name: {QUEUE_NAME_RULE}", _queue_name)
subscription_name = Rule(f"a subscription's name: {QUEUE_NAME_RULE}", _queue_name)
http_hosts = Rule(
    'names of hosts, such as ["mq.example.com", "mq.example.com:8443"], or one text with commas between them',
    _http_hosts,
)
topics = Rule(
    'topics as a reader names them, such as "orders." or "orders.*.paid", or a list of them', _topics
)
_weight = whole(1, 1000)
weights = Rule("a table of tenants and whole numbers, 1 to 1000", _weights)
job_headers = Rule("a table of job options", _job_headers)
#: ``~`` is the user's home.
folder = Rule("a folder", _folder)
mongodb_uri = Rule(uris.EXPECTED, _mongodb_uri)
event_bus = Rule(f"one of {', '.join(BusForm)}, or {redis_url.EXPECTED}", _event_bus)
#: ``*`` is every interface.
host = Rule('a host name or an address without a port, as in "0.0.0.0" or "::1"', _host)
#: Where the HTTP door listens; empty: nowhere.
http_address = Rule('a host and a port, as in "127.0.0.1:5580", or "" for no such door', _http_address)
secret = Rule(f"a secret of {SHORTEST_SECRET} to 256 visible characters of ASCII", _secret)
bound_endpoint = Rule("one endpoint that binds, not one that connects (>)", _bound_endpoint)
endpoints = Rule("an endpoint such as tcp://127.0.0.1:5551, or a list of them", _endpoints)


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the error for an unknown key, with the key that was probably meant."""
    names = sorted(known)
    return f"unknown key{_hint(key, names) or '; known are ' + ', '.join(names)}"


def _endpoint(value: Any) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        raise ValueError("one endpoint such as tcp://127.0.0.1:5551")  # noqa: TRY004
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise ValueError(f"an endpoint: {error}") from error


def _hint(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
