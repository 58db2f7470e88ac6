"""Kinds of verbs of SMQ/1. The door's table has those of queues, and those added by parts of the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sluicemq_broker.doors.smq.fields import Fields
from sluicemq_broker.security import Needs

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session


class SessionVerb(NamedTuple):
    """A verb that is handled at once, by ``handle(session, number, fields)``."""

    handle: Callable[[Any, int, Fields], None]
    needs: Needs
    reads: bool = False
    """True for a verb that changes nothing: a client that has left needs no answer."""


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
    weigh: Callable[..., int] | None = None
    reads: bool = False
    """True for a verb that changes nothing: a client that has left needs no answer."""
    at_once: bool = False
    """True for a verb that waits for no other session: its cost is small, or shared by many requests."""
    takes_long: bool = False
    """True for a verb that returns a task; one more field says how many seconds to wait for it."""


#: Verbs by their names on the wire.
Verbs = Mapping[bytes, SessionVerb | AdminVerb]


class SessionState(Protocol):
    """State that a part of the broker keeps of one session."""

    def leave(self) -> None:
        """Release it: the session has ended."""


class Extension(Protocol):
    """A part of the broker that adds verbs to the sessions."""

    verbs: Verbs

    def join(self, session: Session) -> SessionState | None:
        """Return what it keeps of a new session; verbs find it as ``session.state(extension)``."""
