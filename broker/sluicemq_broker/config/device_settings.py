"""Settings of a device, and the kinds that have each. A file with a device has no default devices."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from enum import StrEnum
from typing import Any

from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config import rules
from sluicemq_broker.config.declared import MIB, flag, live, setting
from sluicemq_broker.config.door_settings import doors
from sluicemq_devices.relays import Kind
from sluicemq_devices.sockets import Endpoint


class Ack(StrEnum):
    """Moment when a job of a PULL worker is done: its ZeroMQ has it, before it is sent, or on its commit."""

    RECEIVED = "received"
    AUTO = "auto"
    EXPLICIT = "explicit"


class Envelope(StrEnum):
    """Form in which a worker or subscriber receives a job or message: its payload, or all of it."""

    PAYLOAD = "payload"
    FULL = "full"


#: Settings that only some kinds of devices have.
ONLY = {
    "queue": (Kind.STREAMER, Kind.QUEUE),
    "stream": (Kind.FORWARDER,),
    "replay": (Kind.FORWARDER,),
    "latest": (Kind.FORWARDER,),
    "auto_create": (Kind.STREAMER, Kind.QUEUE),
    "commit": (Kind.STREAMER,),
    "ack": (Kind.STREAMER,),
    "prefetch": (Kind.STREAMER,),
    "cancels": (Kind.STREAMER,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """``[[devices]]``: two ends, each with any number of doors, and what connects them."""

    kind: str = setting(MISSING, rules.one_of(*Kind), "the kind of device")
    queue: str = setting("default", rules.queue_name, "the queue between its ends")
    frontends: tuple[Endpoint, ...] = setting(
        (), doors, "doors of producers, clients or publishers", key="frontend"
    )
    backends: tuple[Endpoint, ...] = setting((), doors, "doors of workers or subscribers", key="backend")
    commits: tuple[Endpoint, ...] = setting((), doors, "doors for the answers of PULL workers", key="commit")
    ack: str = setting(
        Ack.RECEIVED,
        rules.one_of(*Ack),
        "when a PULL worker's job is done: its ZeroMQ has it (received), before it is sent (auto), "
        "or the worker says so (explicit)",
    )
    envelope: str = setting(
        Envelope.PAYLOAD,
        rules.one_of(*Envelope),
        "what workers receive: the payload, or also id and headers; of a stream also its number and time",
    )
    stream: str | None = setting(
        None, rules.queue_name, "the stream between its ends; by default nothing is kept"
    )
    replays: tuple[Endpoint, ...] = setting(
        (), doors, "doors where REQ and DEALER ask for past messages of streams", key="replay"
    )
    latest: bool = flag("a new subscriber gets the last message of each topic at once", default=False)
    prefetch: int | None = setting(
        None,
        rules.whole(1),
        "jobs at once for one PULL worker: not received yet (received, 256 by default, 1000 at most), "
        "unsettled (explicit, 1), or removed ahead (auto, 64)",
    )
    cancels: bool = flag(
        "PULL workers that commit (explicit) hear CANCEL, a receipt and why of a job that they should end",
        default=False,
    )
    auto_create: bool | None = setting(
        None, rules.flag, "a message to an unknown queue makes it; by default as in [broker]"
    )
    hwm: int = setting(10_000, rules.whole(1), "jobs between the ends and MongoDB, at most")
    hwm_bytes: int = setting(64 * MIB, rules.size(), "their bytes, at most")

    mechanism: tuple[str, ...] | None = live(
        None, rules.mechanisms, "the mechanisms that its doors speak; by default those of [security]"
    )
    anonymous: Permissions | None = live(
        None,
        rules.permissions,
        "what clients may do here that are no principal; by default as in [security]",
    )
    insecure: bool = flag(
        "other machines may reach its doors although they need no key", default=False, live=True
    )

    @property
    def ends(self) -> tuple[Endpoint, ...]:
        """All doors of the device."""
        return (*self.frontends, *self.backends, *self.commits, *self.replays)


def applies(key: str, settings: Any) -> bool:
    """Return True if a device of this kind has this setting; other tables have all of theirs."""
    return not isinstance(settings, DeviceSettings) or settings.kind in ONLY.get(key, (settings.kind,))
