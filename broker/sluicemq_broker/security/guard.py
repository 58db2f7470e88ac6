"""The guard of the broker's doors: makes a caller of each peer that gets in."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.protocol.permissions import Action
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_devices.sockets import Decide, Guard
from sluicemq_devices.zmtp import Credentials


class DoorGuard(Guard):
    """The rule of one door. ``anonymous``: the principal of peers that show no key and no password."""

    def __init__(self, anonymous: Principal, refused: Callable[[Caller, Action, str], None]) -> None:
        self._anonymous = anonymous
        self._refused = refused

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:  # noqa: ARG002 - NULL shows none
        """Let the peer in as the anonymous principal."""
        decide(Caller(self._anonymous, peer, refused=self._refused), "")
