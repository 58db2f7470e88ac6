"""Principals, the callers that speak for them, and the one question that every door asks.

A principal is a name with permissions. A caller is one connection, HTTP session or request of a principal.
Its permissions are looked up each time, so that a change holds for connections that are open already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from time import thread_time
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from sluicemq.protocol.errors import ForbiddenError, SluiceError
from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.security.rates import NO_LIMITS, Limits, Rates
from sluicemq_devices.hub import in_turns

#: An action, and the name of a queue or stream.
Need = tuple[Action, str]


class Lane(Protocol):
    """A connection that can be ended. ``who``: its :class:`Caller`."""

    @property
    def who(self) -> Any: ...  # noqa: D102

    def cut(self, why: str) -> None:
        """End it at once, and log the reason."""


class Principal:
    """A name with permissions. ``tenant``: the tenant of all its jobs; ``limits``: what it may send a second.

    The object stays while the principal exists: :meth:`change` replaces what it may do. ``marks_jobs``: its
    jobs have its name or its tenant.
    """

    __slots__ = (
        "_answers",
        "_kept",
        "_permissions",
        "exists",
        "keys",
        "limits",
        "marks_jobs",
        "name",
        "rates",
        "tenant",
    )

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
        self.rates: Rates | None = None
        """Rates of all its connections; None: they may send any number."""
        self._kept: WeakKeyDictionary[Lane, Callable[[], Iterable[Need]]] = WeakKeyDictionary()
        self.change(permissions, tenant=tenant, keys=keys)

    @property
    def permissions(self) -> Permissions:
        """Permissions that it has now."""
        return self._permissions

    def change(
        self,
        permissions: Permissions,
        *,
        tenant: str | None = None,
        keys: frozenset[str] = frozenset(),
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Replace what it may do, and the keys by which it is known; cut connections that may not go on.

        Connections are cut in turns of the hub; this one may not wait.
        """
        self._permissions = permissions
        self._answers: dict[Need, bool] = {}
        self.tenant = tenant
        self.keys = keys
        self.limits = limits
        if self.rates or limits != NO_LIMITS:
            self.rates = self.rates or Rates()
            self.rates.use(limits)
        self.marks_jobs = bool(self.name or tenant)
        in_turns(partial(self._cut_some, iter(list(self._kept.items()))))

    def keep(self, lane: Lane, needs: Callable[[], Iterable[Need]]) -> None:
        """Cut a connection at a change that forbids what it needs then; ``needs`` must not hold it."""
        self._kept[lane] = needs

    def _cut_some(self, kept: Iterator[tuple[Lane, Callable[[], Iterable[Need]]]]) -> bool:
        """Look at the connections of one turn; return True if there may be more.

        To cut a worker with jobs takes some 0.1 ms; one connection may wait for thousands of queues.
        """
        until = thread_time() + 0.004
        lane: Lane | None = None
        for lane, needs in islice(kept, 50):
            lost = next((need for need in needs() if not self.may(*need)), None)
            if lost:
                lane.cut(_may_not(self.name, *lost))
            if thread_time() > until:
                break
        return lane is not None

    def may(self, action: Action, name: str = "") -> bool:
        """Return whether it may do this; ``name``: of the queue or stream, "" for what has none."""
        key = action, name if len(name) <= LONGEST_NAME else ""  # no queue has a longer one
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= 10_000:  # names come from clients
                self._answers.clear()
            answer = self._answers[key] = self._permissions.allow(*key)
        return answer


class Caller:
    """One connection or request of a principal. ``key``: id of the key, password or token that it showed.

    ``peer``: its address. ``refused(caller, action, name)``: counts and logs refusals. ``holds()``: whether
    its door still takes what it has shown.
    """

    __slots__ = ("_holds", "_refused", "key", "peer", "principal")

    def __init__(
        self,
        principal: Principal,
        peer: str = "",
        key: str = "",
        refused: Callable[[Caller, Action, str], None] | None = None,
        holds: Callable[[], bool] | None = None,
    ) -> None:
        self.principal = principal
        self.peer = peer
        self.key = key
        self._refused = refused
        self._holds = holds

    @property
    def name(self) -> str:
        """Name of the principal; empty for anonymous callers."""
        return self.principal.name

    @property
    def maker(self) -> str:
        """Name under which its new names are counted: of the principal, or of an anonymous connection."""
        return self.name or self.peer

    @property
    def tenant(self) -> str | None:
        """Tenant of all its jobs, whatever they say; None: jobs name their tenant."""
        return self.principal.tenant

    @property
    def is_known(self) -> bool:
        """False once its principal, its key or its mechanism was removed: its connections must end."""
        has_key = not self.key or self.key in self.principal.keys
        return self.principal.exists and has_key and (self._holds is None or self._holds())

    def at(self, peer: str) -> Caller:
        """Return the caller for another request of this principal, from this address."""
        return Caller(self.principal, peer, self.key, self._refused, self._holds)

    def by(self, key: str) -> Caller:
        """Return the caller who has shown this key."""
        return Caller(self.principal, self.peer, key, self._refused, self._holds)

    def as_now(self) -> Caller:
        """Return a caller that keeps the present permissions: for answers that equal callers share."""
        return Caller(Principal(self.name, self.principal.permissions), self.peer)

    def may(self, action: Action, name: str = "") -> bool:
        """Return whether it may do this, without counting a refusal: to leave out what it may not see."""
        return self.principal.may(action, name)

    def report(self, action: Action, name: str) -> None:
        """Count and log a refusal."""
        if self._refused:
            self._refused(self, action, name)


def may_stay(lane: Lane, action: Action, name: str = "") -> bool:
    """Return whether a connection may stay open for this; one that may not is cut, now or later.

    Ask when it opens: it may do nothing else at its door.
    """
    caller: Caller = lane.who
    if caller.may(action, name):
        caller.principal.keep(lane, lambda: [(action, name)])
        return True
    caller.report(action, name)
    lane.cut(_may_not(caller.name, action, name))
    return False


def may_use(lane: Lane, action: Action) -> bool:
    """Return whether a connection may do this on any queue or stream; one that may not is cut."""
    caller: Caller = lane.who
    if caller.principal.permissions.patterns(action):
        return True
    caller.report(action, "")
    lane.cut(_may_not(caller.name, action, ""))
    return False


def authorize(caller: Caller, action: Action, name: str = "", *, hidden: bool = False) -> None:
    """Raise :class:`Forbidden`, and count and log it, unless the caller may do this.

    ``name``: of the queue or stream; "" for what has no name, which needs the pattern ``*``. ``hidden``: the
    request does not name it, so that the error does not either.
    """
    if caller.principal.may(action, name):
        return
    raise may_not(caller, action, name, hidden=hidden)


def may_not(caller: Caller, action: Action, name: str = "", *, hidden: bool = False) -> ForbiddenError:
    """Return the refusal of what a caller may not do; counts and logs it. See :func:`authorize`."""
    caller.report(action, name)
    return ForbiddenError(_may_not(caller.name, action, "its queue" if hidden else name))


def require_known(caller: Caller) -> None:
    """Raise :class:`Forbidden` for a caller whose connection is about to be cut."""
    if not caller.is_known:
        raise ForbiddenError(f"{caller.name or 'an anonymous client'} gets in no more: its key was removed")


def with_hint(caller: Caller, error: SluiceError) -> SluiceError:
    """Return an error as a caller reads it: with the queue that was meant, if it may do anything there."""
    meant = error.meant
    if not meant or not any(caller.may(action, meant) for action in Action):
        return error
    return type(error)(f"{error}; did you mean {meant!r}?")


def _may_not(who: str, action: Action, name: str) -> str:
    what = f"{who or 'an anonymous client'} may not {action} {name[:LONGEST_NAME]}".rstrip()
    return f"{what}: its permissions don't allow that"


def named(principal: str) -> Caller:
    """Return a caller for jobs of a principal who is not connected, such as those of its schedules."""
    return Caller(Principal(principal, Permissions())) if principal else ANYBODY


#: The caller where nothing is configured: everything is permitted.
ANYBODY: Final = Caller(Principal("", Permissions.all()))
