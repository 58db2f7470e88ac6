"""Permission that one request needs: each verb and each path of the API has this line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import NotFoundError
from sluicemq.protocol.permissions import Action
from sluicemq_broker.security.acts import Unchanged
from sluicemq_broker.security.authorize import Caller, Need, authorize


class Effect(NamedTuple):
    """A permission that a request needs besides, because of what it does; ``on``: where, in words."""

    action: Action
    on: str


class Needs(NamedTuple):
    """Permission that a request needs: an action, on the queue or stream that the request names.

    ``action``: None: everybody who got in may do it. ``name``: place of the field of a verb, or parameter of
    a path, that names the queue or stream; None: the request names none.
    """

    action: Action | None
    name: int | str | None = None
    more: Callable[..., Iterable[Need]] | None = None
    """Function that is called as the method that answers, and returns what else the content needs.

    Where the request names nothing, the action itself is one of these.
    """
    shows: Callable[[Caller, Any], Any] | None = None
    """Function of the caller and the answer, which returns the answer without what the caller may not see.

    A request that names nothing is then answered for everybody, with fewer rows.
    """
    hidden: bool = False
    """True if ``more`` finds names that the request does not say: errors don't say them either.

    What is not there is then forbidden, too, unless the caller may do this everywhere.
    """
    own: bool = False
    """True if who may push there may do this with jobs of its principal; the verb looks whose they are."""
    also: tuple[Effect, ...] = ()
    """Other permissions that a request may need: ``more`` asks for them, or the verb itself."""

    acts: Callable[[Sequence[Any]], bool] | None = None
    """Function of a verb's fields: True if such a request is an administrative act, though others are not."""

    def is_act(self, fields: Sequence[Any]) -> bool:
        """Return whether a change with these fields is an administrative act."""
        return self.administers or (self.acts is not None and self.acts(fields))

    @property
    def administers(self) -> bool:
        """True if a change with this line is an administrative act, which the audit records."""
        return self.action in (Action.MANAGE, Action.OPERATE)

    def named_in(self, fields: Sequence[Any]) -> Any:
        """Return the field that names the queue or stream; None if there is none."""
        place = self.name
        return fields[place] if isinstance(place, int) and place < len(fields) else None

    def ask(self, caller: Caller, name: object = None) -> None:
        """Raise Forbidden unless the caller may do this; ``name``: what the request names, if anything."""
        if self.action is None or (self.name is None and self.more) or (name is None and self.shows):
            return
        if self.own and isinstance(name, str) and caller.name and caller.may(Action.PUSH, name):
            return
        authorize(caller, self.action, name if isinstance(name, str) else "")

    def ask_more(self, caller: Caller, *request: Any, **parameters: str) -> None:
        """Raise Forbidden unless the caller may do what depends on the content; may wait for MongoDB.

        ``parameters``: names in the path of an HTTP request.
        """
        if self.more is None:
            return
        try:
            needs = list(self.more(*request, **parameters))
        except NotFoundError:
            if self.hidden and self.action:  # or strangers could tell what is there
                authorize(caller, self.action, hidden=True)
            raise
        for action, name in needs:
            authorize(caller, action, name, hidden=self.hidden)

    def show(self, caller: Caller, answer: Any) -> Any:
        """Return the answer without what the caller may not see; raises Forbidden if nothing is left."""
        if isinstance(answer, Unchanged):
            return Unchanged(self.show(caller, answer.answer))
        return self.shows(caller, answer) if self.shows else answer


#: Everybody who got in may do it.
NOTHING: Final = Needs(None)
