"""Security of a broker, put together: its principals and the guards of its doors."""

from __future__ import annotations

from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_broker.security.guard import DoorGuard


class Security:
    """The principals of a broker, and the guards of its doors."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
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
        """Count a refusal, and log it, once a second."""
        who = caller.name or "an anonymous client"
        self._counters.notice(Count.FORBIDDEN, f"{who} from {caller.peer}: {action} {name}".rstrip())
