"""Guards of doors: the mechanisms that a door speaks, and who gets in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluicemq_devices.sockets.endpoints import Endpoint
from sluicemq_devices.zmtp import Credentials, Terms

#: Takes the decision about a peer: who it is for the door's owner, and why it does not get in, or "".
Decide = Callable[[Any, str], None]


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
