"""Security of a broker, put together: its principals and the guards of its doors."""

from __future__ import annotations

import logging
from typing import Final

from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_broker.security.guard import DoorGuard
from sluicemq_devices.hub import Notices

#: Principals whose refusals are logged apart from those of others.
_MOST_LOGGED: Final = 1000

log = logging.getLogger("broker")


class Security:
    """The principals of a broker, and the guards of its doors."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._lines: dict[str, Notices] = {}
        self.anonymous = Principal("", Permissions.all())
        """The principal of peers that show no key, no password and no token."""

    def guard(self) -> DoorGuard:
        """Return the guard of a door."""
        return DoorGuard(self.anonymous, self.refused)

    def caller(self, peer: str) -> Caller:
        """Return the caller for an anonymous request from this address."""
        return Caller(self.anonymous, peer, refused=self.refused)

    @property
    def has_logins(self) -> bool:
        """True if a principal has a token or a password."""
        return False

    def by_token(self, token: str, peer: str) -> Caller | None:  # noqa: ARG002 - no principal has one yet
        """Return the caller with this bearer token, for a request from ``peer``; None: nobody has it."""
        return None

    def by_password(self, user: str, password: str, peer: str) -> Caller | None:  # noqa: ARG002 - as above
        """Return the caller with this password, for a login from ``peer``; None: one of both is wrong."""
        return None

    def refused(self, caller: Caller, action: Action, name: str) -> None:
        """Count a refusal, and log it, one line a second for each principal."""
        who = caller.name or "an anonymous client"
        self._counters.add(Count.FORBIDDEN)
        self._lines_of(caller.name).notice(
            Count.FORBIDDEN, f"{who} from {caller.peer}: {action} {name[:LONGEST_NAME]}".rstrip()
        )

    def _lines_of(self, name: str) -> Notices:
        """Return what logs the refusals of one principal: those of others can't hide them."""
        lines = self._lines.get(name)
        if lines is None:
            if len(self._lines) >= _MOST_LOGGED:
                self._lines.pop(next(iter(self._lines))).say_rest()
            lines = self._lines[name] = Notices(log)
        return lines
