"""Principals, the callers that speak for them, and the one question that every door asks.

A principal is a name with permissions. A caller is one connection, HTTP session or request of a principal.
Its permissions are looked up each time, so that a change holds for connections that are open already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicemq.protocol.errors import Forbidden
from sluicemq.protocol.permissions import Action, Permissions

#: Answers that a principal remembers. Names come from clients, so there must be a bound.
_MOST_REMEMBERED: Final = 10_000


class Principal:
    """A name with permissions. ``tenant``: the tenant of all its jobs; ``limits``: what it may send a second.

    The object stays while the principal exists: :meth:`change` replaces what it may do.
    """

    __slots__ = ("_answers", "_permissions", "exists", "keys", "name", "tenant")

    def __init__(
        self,
        name: str,
        permissions: Permissions,
        *,
        tenant: str | None = None,
        keys: frozenset[str] = frozenset(),
    ) -> None:
        """``keys``: ids of the keys, passwords and tokens by which it is known now."""
        self.name = name
        self.exists = True
        self.change(permissions, tenant=tenant, keys=keys)

    @property
    def permissions(self) -> Permissions:
        """Permissions that it has now."""
        return self._permissions

    def change(
        self, permissions: Permissions, *, tenant: str | None = None, keys: frozenset[str] = frozenset()
    ) -> None:
        """Replace what it may do, and the keys by which it is known."""
        self._permissions = permissions
        self._answers: dict[tuple[Action, str], bool] = {}
        self.tenant = tenant
        self.keys = keys

    def may(self, action: Action, name: str = "") -> bool:
        """Return whether it may do this; ``name``: of the queue or stream, "" for what has none."""
        key = action, name
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= _MOST_REMEMBERED:
                self._answers.clear()
            answer = self._answers[key] = self._permissions.allow(action, name)
        return answer


class Caller:
    """One connection or request of a principal. ``key``: id of the key, password or token that it showed.

    ``peer``: its address. ``refused(caller, action, name)``: counts and logs refusals.
    """

    __slots__ = ("_refused", "key", "peer", "principal")

    def __init__(
        self,
        principal: Principal,
        peer: str = "",
        key: str = "",
        refused: Callable[[Caller, Action, str], None] | None = None,
    ) -> None:
        self.principal = principal
        self.peer = peer
        self.key = key
        self._refused = refused

    @property
    def name(self) -> str:
        """Name of the principal; empty for anonymous callers."""
        return self.principal.name

    @property
    def tenant(self) -> str | None:
        """Tenant of all its jobs, whatever they say; None: jobs name their tenant."""
        return self.principal.tenant

    @property
    def is_known(self) -> bool:
        """False once its principal or its key was removed: its connections must end."""
        return self.principal.exists and (not self.key or self.key in self.principal.keys)

    def at(self, peer: str) -> Caller:
        """Return the caller for another request of this principal, from this address."""
        return Caller(self.principal, peer, self.key, self._refused)

    def may(self, action: Action, name: str = "") -> bool:
        """Return whether it may do this, without counting a refusal: to leave out what it may not see."""
        return self.principal.may(action, name)

    def report(self, action: Action, name: str) -> None:
        """Count and log a refusal."""
        if self._refused:
            self._refused(self, action, name)


def authorize(caller: Caller, action: Action, name: str = "") -> None:
    """Raise :class:`Forbidden`, and count and log it, unless the caller may do this.

    ``name``: of the queue or stream; "" for what has no name, which needs the pattern ``*``.
    """
    if caller.principal.may(action, name):
        return
    caller.report(action, name)
    who = caller.name or "an anonymous client"
    raise Forbidden(f"{who} may not {action} {name}".rstrip() + ": its permissions don't allow that")


#: The caller where nothing is configured: everything is permitted.
ANYBODY: Final = Caller(Principal("", Permissions.all()))
