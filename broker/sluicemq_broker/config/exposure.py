"""Doors that other machines can reach although clients need no key there: refused, unless it is said so."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import rules
from sluicemq_broker.config.loading import Config
from sluicemq_broker.config.problems import Problem
from sluicemq_broker.config.security_settings import anonymous_of, rule_of
from sluicemq_devices.sockets import parse_endpoint

_KEYS = """\
Make a key with `sluicemq key new --out broker.key`, and put these lines into the file of --config:
    [security]
    mechanism = "curve"
    secret_key_file = "broker.key"
Then let in each client by its key, the first one with \
`sluicemq principals add NAME all --key KEY --mongodb-uri-file {file}`. Or keep the doors on this machine: \
host = "127.0.0.1". Or say that everybody in this network may do everything: insecure = true in [broker] \
(--insecure)."""
_TLS = """\
Put these lines into the file of --config:
    [broker]
    http_tls_cert = "certificate.pem"
    http_tls_key = "key.pem"
    [security]
    anonymous = "none"
Or keep it on this machine: http = "127.0.0.1:5580". Or say that this network may be trusted, or that a \
reverse proxy has TLS: http_insecure = true in [broker] (--http-insecure)."""


class Exposed(NamedTuple):
    """A door that other machines can reach, and what clients may do there that show no key.

    ``accepted``: the configuration says that this is meant.
    """

    place: str
    address: str
    permissions: Permissions
    accepted: bool


def exposed(config: Config) -> Iterator[Exposed]:
    """Yield the doors but HTTP that other machines can reach, where clients need no key to do something."""
    for place, end, device in config.doors:
        rule = rule_of(config.security, end, device)
        if end.is_exposed and rule.anonymous:
            accepted = rule.insecure or config.broker.insecure
            yield Exposed(place, end.address, rule.anonymous, accepted)


def is_reachable(config: Config) -> bool:
    """Return whether other machines can reach any door, with or without a key."""
    http = config.broker.http
    return any(end.is_exposed for _place, end, _device in config.doors) or bool(
        http and parse_endpoint(f"@tcp://{http}").is_exposed
    )


def http_exposure(config: Config) -> str:
    """Return what is open to other machines at the HTTP door; empty if nothing is."""
    address = config.broker.http
    if not address or not parse_endpoint(f"@tcp://{address}").is_exposed:
        return ""
    wrong = (
        []
        if config.broker.http_tls_cert
        else ["passwords, tokens and jobs go over the network in clear text"]
    )
    anonymous = anonymous_of(config.security)
    if any(map(anonymous.patterns, (Action.READ, Action.SUBSCRIBE, Action.OPERATE))):
        wrong.append("everybody may read there")
    return " and ".join(wrong)


def problems_of_exposure(config: Config) -> list[Problem]:
    """Return what must be said before such doors are opened, with the lines that mend it."""
    found = [door for door in exposed(config) if not door.accepted]
    problems = [] if not found else _problems(config, found)
    http = http_exposure(config)
    if http and not config.broker.http_insecure:
        door = config.named("http", config.broker.http)
        said = f"other machines can reach the HTTP door {door}, and {http}. {_TLS}"
        problems.append(Problem("", said))
    return problems


def _problems(config: Config, found: Sequence[Exposed]) -> list[Problem]:
    """Return one problem where nothing is configured, else one for each door."""
    security = config.security
    if security.mechanism == (rules.NULL,) and security.anonymous is None:
        others = len(found) - 1
        first = found[0]
        where = _named(config, first) + (f" and {others} more door{'s' * (others > 1)}" if others else "")
        may = f"other machines can reach {where}, and everybody may do everything there."
        return [Problem("", f"{may} {_KEYS.format(file=_uri_file(config))}")]
    return [
        Problem(
            door.place,
            f"other machines can reach {_named(config, door)}, and clients without a key may do this there: "
            f'{door.permissions}. Say anonymous = "none", or insecure = true',
        )
        for door in found
    ]


def _named(config: Config, door: Exposed) -> str:
    """Return the address of a door, with the variable that moves it, if one does."""
    own = door.address == config.broker.endpoint.address
    return config.named("endpoint" if own else "host", door.address)


def _uri_file(config: Config) -> str:
    """Return the file with the URI of MongoDB, by which the first principal is made."""
    broker = config.broker
    own = None if broker.mongodb_uri else broker.data_dir and broker.data_dir / "mongodb.uri"
    return shlex.quote(str(broker.mongodb_uri_file or own or "FILE"))
