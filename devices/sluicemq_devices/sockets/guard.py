"""Guards of doors: the mechanisms that a door speaks, and who gets in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sluicemq_devices.sockets.endpoints import Endpoint
from sluicemq_devices.zmtp import Credentials, Terms


class Decide(Protocol):
    """Takes the decision about a peer."""

    def __call__(self, who: Any, why: str, *, for_now: bool = False) -> None:
        """Let the peer in as ``who``, or refuse it for a reason, ``why``.

        ``for_now``: the peer hears nothing of that and tries again. A ZeroMQ that hears of it does not.
        """


class Guard(Terms):
    """A door's rule; this one speaks NULL and lets everybody in."""

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        """Decide about a peer, now or later; ``decide(who, why)`` is called once, on the hub.

        ``peer``: its address. ``who`` becomes the ``who`` of its connection. Of a server that was dialled the
        credentials are those that it had to have: of CURVE its key, of PLAIN none. A connection that ended
        before the decision ignores it.
        """
        del credentials, peer
        decide(None, "")


OPEN = Guard()

#: Return the guard of the door at an endpoint.
Guards = Callable[[Endpoint], Guard]


def open_to_all(_end: Endpoint) -> Guard:
    """Return the guard of a door that lets everybody in."""
    return OPEN
