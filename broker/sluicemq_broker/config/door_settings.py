"""Settings of one door. An end of a device is an address, or a table of these settings with an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rules import Rule
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import live, setting, settings_of
from sluicemq_devices.sockets import Endpoint

#: Several brokers, as clients write them: the variable of the endpoint is theirs, too.
_SEVERAL: Final = re.compile(r"^dns\+tcp://|,\s*(?:dns\+tcp|tcp|ipc)://")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """``frontend = { endpoint = "tcp://*:5551", mechanism = ["curve"] }``: one door, over its device."""

    endpoint: Endpoint = setting(MISSING, rules.endpoint, "the door's address")
    mechanism: tuple[str, ...] | None = live(
        None, rules.mechanisms, "the mechanisms that this door speaks; by default those of its device"
    )
    anonymous: Permissions | None = live(
        None, rules.permissions, "what clients may do here that are no principal; by default as at its device"
    )
    insecure: bool | None = live(
        None, rules.flag, "other machines may reach this door although it needs no key"
    )
    server_key: str | None = live(
        None,
        rules.public_key,
        "where the door connects (>): the public key of the socket there, which must speak curve",
    )


@dataclass(frozen=True)
class Door(Endpoint):
    """An endpoint with settings of its own."""

    settings: DoorSettings


def own_settings(endpoint: Endpoint) -> DoorSettings:
    """Return the settings of a door; those of a bare address leave all to its device."""
    return endpoint.settings if isinstance(endpoint, Door) else DoorSettings(endpoint=endpoint)


def with_settings(endpoint: Endpoint, settings: DoorSettings) -> Endpoint:
    """Return the door at this endpoint with other settings."""
    if settings == own_settings(endpoint):
        return endpoint
    return Door(endpoint.address, endpoint.bind, settings)


def given(door: Door) -> dict[str, Any]:
    """Return the settings that a door has of its own, by key."""
    values = {key: getattr(door.settings, setting.name) for key, setting in settings_of(DoorSettings).items()}
    return {key: value for key, value in values.items() if value is not None}


def _doors(value: Any) -> tuple[Endpoint, ...]:
    return tuple(map(_door, value if isinstance(value, list | tuple) else [value]))


def _bound_door(value: Any) -> Endpoint:
    if isinstance(value, str) and _SEVERAL.search(value):
        raise ValueError("the one address of this broker's own door: lists of brokers are for their clients")
    door = _door(value)
    if not door.bind:
        raise ValueError(bound_door.expected)
    return door


def _door(value: Any) -> Endpoint:
    if not isinstance(value, Mapping):
        endpoint: Endpoint = rules.endpoint(value)
        return endpoint
    known = settings_of(DoorSettings)
    read = {}
    for key, given in value.items():
        if key not in known:
            raise ValueError(f"a door: {key}: {rules.unknown(key, known)}")
        try:
            read[key] = known[key].metadata["rule"](given)
        except ValueError as error:
            raise ValueError(f"a door with {key} = {error}") from None
    if "endpoint" not in read:
        raise ValueError('a door with its endpoint, as { endpoint = "tcp://127.0.0.1:5551" }')
    settings = DoorSettings(**read)
    return Door(settings.endpoint.address, settings.endpoint.bind, settings)


doors = Rule("an endpoint such as tcp://127.0.0.1:5551, or a table of a door, or a list of them", _doors)
bound_door = Rule("one endpoint that binds, not one that connects (>), or a table of a door", _bound_door)
