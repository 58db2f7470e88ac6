"""Kinds of verbs of SMQ/1. The door's table has those of queues, and those added by parts of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sluicemq.protocol import wire
from sluicemq_broker.doors.smq.fields import Fields
from sluicemq_broker.security import Need, Needs

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session


class SessionVerb(NamedTuple):
    """A verb that is handled at once, by ``handle(session, number, fields)``."""

    handle: Callable[[Any, int, Fields], None]
    needs: Needs
    reads: bool = False
    """True for a verb that changes nothing: a client that has left needs no answer."""
    charged: bool = False
    """True for a verb that counts in the rates of its principal: it waits while the principal is in debt."""

    @property
    def ends_with_client(self) -> bool:
        """True if nobody wants it any more once its client has left."""
        return self.reads


class Computed(NamedTuple):
    """An answer that is made of memory: ``make()`` is called when it is the peer's turn.

    The method of a verb returns it in place of the answer itself.
    """

    make: Callable[[], Any]


class AdminVerb(NamedTuple):
    """A verb that waits for MongoDB: ``method`` of ``subject(session)``, with fields of these ``types``.

    The caller is asked for what it needs before the request waits, and for what depends on the content before
    the method is called. ``weigh``: returns about how many bytes an answer takes, where it may be as large as
    jobs.
    """

    subject: Callable[[Any], object]
    method: Callable[..., Any]
    needs: Needs
    types: tuple[Any, ...] = ()
    optional: tuple[Any, ...] = ()
    """Types of further fields that older clients don't send; None where one is missing."""
    weigh: Callable[..., int] | None = None
    reads: bool = False
    """True for a verb that changes nothing: a client that has left needs no answer."""
    at_once: bool = False
    """True for a verb that waits for no other session: its cost is small, or shared by many requests."""
    takes_long: bool = False
    """True for a verb that returns a task; one more field says how many seconds to wait for it."""
    actions: frozenset[str] = frozenset()
    """Actions of a verb whose first field is one; with those of ``wire.ONLY_LOOK`` it changes nothing."""

    @property
    def ends_with_client(self) -> bool:
        """True if nobody wants it any more once its client has left: a question, an administrative order."""
        return self.reads or self.needs.administers

    def is_act(self, fields: Fields) -> bool:
        """Return whether a request is an administrative act."""
        only_looks = bool(self.actions) and bool(fields) and fields[0] in wire.ONLY_LOOK
        return self.needs.is_act(fields) and not self.reads and not only_looks

    def audit_name(self, name: bytes, fields: Fields) -> str:
        """Return how the audit names an act: ``purge``, ``users add``."""
        words = [word for word in fields[:1] if isinstance(word, str) and word in self.actions]
        return " ".join([name.decode().lower(), *words])

    def arguments(self, fields: Fields) -> dict[str, Any]:
        """Return the fields of a request but its subject, by the names that its method has for them."""
        named = 0 if self.actions else self.needs.name
        parameters = enumerate(zip(_parameters(self.method), fields, strict=False))
        return dict(pair for place, pair in parameters if place != named)


@cache
def _parameters(method: Callable[..., Any]) -> list[str]:
    """Return the names of a method's parameters, but its subject."""
    return list(signature(method).parameters)[1:]


#: Verbs by their names on the wire.
Verbs = Mapping[bytes, SessionVerb | AdminVerb]


class SessionState(Protocol):
    """State that a part of the broker keeps of one session."""

    def needs(self) -> Iterable[Need]:
        """Return the permissions without which the session is cut: those for what it holds."""

    def leave(self) -> None:
        """Release it: the session has ended."""


class Extension(Protocol):
    """A part of the broker that adds verbs to the sessions."""

    verbs: Verbs

    def join(self, session: Session) -> SessionState | None:
        """Return what it keeps of a new session; verbs find it as ``session.state(extension)``."""
