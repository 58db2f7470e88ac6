"""Settings of security: mechanisms, keys, principals; and the rule that holds at one door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import NamedTuple

from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rules import LIMITS
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import flag, live
from sluicemq_broker.config.device_settings import DeviceSettings
from sluicemq_broker.config.door_settings import own_settings
from sluicemq_broker.config.secrets import KeyFile, Secret
from sluicemq_devices.sockets import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """``[security]``: how clients show who they are, and what those may do that don't."""

    mechanism: tuple[str, ...] = live(
        (rules.NULL,),
        rules.mechanisms,
        "the mechanisms of ZMTP that the doors speak: curve has keys and encrypts, plain has passwords, null "
        "has neither",
    )
    secret_key_file: KeyFile | None = live(
        None, rules.key_file, "the broker's own key pair, for curve; `sluicemq key new --out FILE` makes one"
    )
    anonymous: Permissions | None = live(
        None,
        rules.permissions,
        "what clients may do that are no principal; by default all where only null is spoken, else none",
    )
    allow_plain: bool = flag(
        "passwords may come in clear text from other machines, too", default=False, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalSettings:
    """``[security.principals.NAME]``: a client, how it is known, and what it may do."""

    keys: tuple[str, ...] = live((), rules.public_keys, "its public keys of curve")
    password: Secret | None = live(
        None,
        rules.password_hash,
        "the argon2 hash of its password, for plain and for the login; `sluicemq principals hash` makes one",
    )
    tokens: tuple[str, ...] = live(
        (), rules.token_hashes, "its tokens for HTTP, each as sha256: and the SHA-256 of the token"
    )
    permissions: Permissions = live(MISSING, rules.permissions, "what it may do")
    tenant: str | None = live(
        None, OPTIONS["tenant"].rule, "the tenant of all its jobs; by default jobs name theirs"
    )
    max_rate: float | None = live(None, LIMITS["max_rate"], "jobs and messages that it may send in a second")
    max_bytes_rate: int | None = live(None, LIMITS["max_bytes_rate"], "bytes that it may send in a second")


class DoorRule(NamedTuple):
    """The security of one door: what it speaks, what anonymous clients may do, what its settings accept."""

    mechanisms: tuple[str, ...]
    anonymous: Permissions
    insecure: bool
    server_key: str | None


def rule_of(security: SecuritySettings, end: Endpoint, device: DeviceSettings | None = None) -> DoorRule:
    """Return the rule of a door: its own settings, over those of its device, over ``[security]``.

    ``end``: an endpoint as the configuration has it. ``device``: None for the door of the library.
    """
    own = own_settings(end)
    levels = (own, device, security) if device else (own, security)
    mechanisms = next(level.mechanism for level in levels if level.mechanism is not None)
    if own.server_key is not None and own.mechanism is None:
        mechanisms = (rules.CURVE,)
    # A server whose key the file names is no anonymous client: only the table of its door limits it.
    limits = levels if own.server_key is None else (own,)
    anonymous = next((limit.anonymous for limit in limits if limit.anonymous is not None), None)
    if anonymous is None:
        is_open = mechanisms == security.mechanism == (rules.NULL,) or own.server_key is not None
        anonymous = Permissions.all() if is_open else Permissions()
    of_device = device.insecure if device else False
    insecure = of_device if own.insecure is None else own.insecure
    return DoorRule(mechanisms, anonymous, insecure, own.server_key)


def problem_of_door(security: SecuritySettings, end: Endpoint, rule: DoorRule) -> str | None:
    """Return what a door lacks for its mechanisms; None if nothing."""
    if rules.CURVE in rule.mechanisms and security.secret_key_file is None:
        return (
            "curve needs secret_key_file in [security], with the broker's own keys: "
            "sluicemq key new --out FILE makes them"
        )
    if not end.bind:
        if rules.CURVE in rule.mechanisms and rule.server_key is None:
            return "curve needs server_key in the table of this door: the public key of the socket there"
        one = len(rule.mechanisms) == 1 and rules.PLAIN not in rule.mechanisms
        return (
            None
            if one
            else 'a door that connects speaks one mechanism: mechanism = "null" or "curve" in its table'
        )
    if rules.PLAIN in rule.mechanisms and not security.allow_plain and end.is_exposed:
        return (
            "plain sends passwords in clear text, and other machines can reach this door: "
            "use curve, or allow_plain = true in [security]"
        )
    if rule.mechanisms == (rules.NULL,) != security.mechanism and not rule.anonymous:
        return 'nobody gets in here: with mechanism = "null" say anonymous = "all", or what clients may do'
    return None


def anonymous_of(security: SecuritySettings) -> Permissions:
    """Return what anonymous clients may do where no door is asked: over HTTP."""
    if security.anonymous is not None:
        return security.anonymous
    return Permissions.all() if security.mechanism == (rules.NULL,) else Permissions()


def shared_keys(principals: Mapping[str, PrincipalSettings]) -> dict[str, list[str]]:
    """Return the keys and tokens that several principals have, with the names of those."""
    holders: dict[str, list[str]] = {}
    for name, principal in principals.items():
        for key in dict.fromkeys((*principal.keys, *principal.tokens)):
            holders.setdefault(key, []).append(name)
    return {key: names for key, names in holders.items() if len(names) > 1}
