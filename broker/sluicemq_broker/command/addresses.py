"""The addresses of the doors: whether they are free."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from errno import EADDRINUSE, EADDRNOTAVAIL

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.config import Config, default_devices
from sluicemq_devices.sockets import host_and_port, parse_endpoint, resolved, unix_path


def require_free(config: Config) -> None:
    """Raise :class:`Unavailable` for an address that another process has, before anything is started."""
    for setting, address in _bound(config):
        number = _errno(address)
        if number == EADDRINUSE:
            what = config.named(setting, address)
            raise UnavailableError(f"{what} is taken, perhaps by another broker; {_way_out(config)}")
        if number == EADDRNOTAVAIL and setting in config.places:  # else its door says so
            raise UnavailableError(f"{config.named(setting, address)} is no address of this machine")


def taken(config: Config) -> list[str]:
    """Return the addresses of doors that a process has, this broker's own or another one."""
    return [address for _setting, address in _bound(config) if _errno(address) == EADDRINUSE]


def _way_out(config: Config) -> str:
    """Return the options that a second broker on this machine needs: other doors, another data folder."""
    broker = config.broker
    ports = broker.ports + (1000 if broker.ports < 60_000 else -1000)
    words = [f"--ports {ports}"]
    if broker.mongodb_uri is None:
        words.append(f"--data-dir {shlex.quote(f'{broker.data_dir}-{ports}')}")
    devices = ""
    if broker.devices and config.devices != default_devices(broker.host, broker.ports):
        devices = ", and with addresses of its own in [[devices]], or --no-devices"
    return f"a second broker on this machine starts with {' '.join(words)}{devices}"


def _bound(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the addresses of all doors, each with the setting of ``[broker]`` that says it."""
    ends = [("endpoint", config.broker.endpoint)]
    if config.broker.http:
        ends.append(("http", parse_endpoint(f"@tcp://{config.broker.http}")))
    ends += [("ports", end) for device in config.devices for end in device.ends]
    return ((setting, end.address) for setting, end in ends if end.bind)


def _errno(address: str) -> int | None:
    """Return the number of the error with which a door could not have this address; None: it could."""
    if not address.startswith("tcp://"):
        with socket.socket(socket.AF_UNIX) as probe:
            return EADDRINUSE if probe.connect_ex(unix_path(address)) == 0 else None
    try:
        family, place = resolved(*host_and_port(address))[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.errno
    return None
