"""Parameters and bodies of requests: what each may have, with its bounds."""

from __future__ import annotations

from base64 import b64decode
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.wire import ShownState
from sluicemq_broker.admin import CHOICE, MOST_LISTED
from sluicemq_broker.runtime import read_options
from sluicemq_broker.store import DeadLetters

Time = Annotated[float, Meta(description="Unix seconds")]
Limit = Annotated[int, Meta(ge=1, le=MOST_LISTED, description="how many at most")]
After = Annotated[str, Meta(description="the `next` of the page before")]
Part = Annotated[str, Meta(description="a part of the last reason")]


Error = Annotated[str, Meta(description="the type of the last error; ?: not known")]
Place = Annotated[str, Meta(description="the function that raised the last error; ?: not known")]


class Pausable(StrEnum):
    """The parts of a queue that can be paused."""

    DELIVERY = wire.DELIVERY
    INTAKE = wire.INTAKE


class OfQueue(Struct, frozen=True):
    """A choice of one queue, or of all."""

    queue: str | None = None


class KindsQuery(OfQueue, frozen=True):
    """Kinds whose names have this part; of more than ``limit`` those that fail most."""

    contains: str = ""
    limit: Annotated[int, Meta(ge=1, le=2000)] = 2000


class JobsQuery(Struct, frozen=True):
    """Jobs of a state, page by page; or jobs by the beginning of their ``id``."""

    state: ShownState = ShownState.READY
    id: Annotated[str, Meta(description="how the id begins")] | None = None
    limit: Limit = 20
    after: After | None = None


class JobQuery(Struct, frozen=True):
    """One job, with the beginnings of its payload and result."""

    payload: Annotated[int, Meta(ge=0, description="bytes that are enough")] | None = None


class FindQuery(OfQueue, frozen=True):
    """Jobs by ``id``, or those that match all other conditions; texts in upper or lower case."""

    id: Annotated[str, Meta(description="how the id begins; stands alone, or with a queue")] | None = None
    words: Annotated[str, Meta(description="in id, kind, tenant, group, last error or payload")] | None = None
    text: Annotated[str, Meta(description="in the payload")] | None = None
    kind: str | None = None
    tenant: str | None = None
    group: str | None = None
    header: Annotated[str, Meta(description="a header and its value, as in `order=17`")] | None = None
    error: Annotated[str, Meta(description="in the last error, or its type")] | None = None
    state: ShownState | None = None
    since: Annotated[float, Meta(description="ended, or else pushed, from then on; Unix seconds")] | None = (
        None
    )
    until: Annotated[float, Meta(description="ended, or else pushed, before then; Unix seconds")] | None = (
        None
    )
    limit: Limit = 20
    after: After | None = None

    def options(self) -> dict[str, Any]:
        """Return the search as the verb FIND takes it."""
        texts = ("queue", "id", "words", "text", "kind", "tenant", "group", "error", "since", "until")
        name, _, value = (self.header or "").partition("=")
        more = {"headers": {name: value} if name else None, "states": [self.state] if self.state else None}
        return _given({**{name: getattr(self, name) for name in texts}, **more})


class EndsQuery(Struct, frozen=True):
    """One job by its id, or the latest ones."""

    id: str | None = None
    limit: Limit = 20


class DeadQuery(Struct, frozen=True):
    """Dead letters, chosen by why and when they died, and by kind."""

    reason: Part | None = None
    since: Time | None = None
    until: Time | None = None
    error: Error | None = None
    place: Place | None = None
    kind: str | None = None

    def which(self) -> DeadLetters:
        """Return the choice; raises BadFrames for a time out of bounds."""
        given = {name: getattr(self, name) for name in wire.OF_DEAD}
        return DeadLetters(**read_options(_given(given), CHOICE, "a choice of dead letters"))


class DeadPageQuery(DeadQuery, frozen=True):
    """A page of dead letters."""

    limit: Limit = 20
    after: After | None = None


class WhatBody(Struct, frozen=True):
    """The part of a queue that is paused or resumed."""

    what: Pausable = Pausable.DELIVERY


class SettingsBody(Struct, frozen=True):
    """Values by setting, as in a file; null: no value."""

    settings: dict[str, Any]


class KeysBody(Struct, frozen=True):
    """Settings that are taken back."""

    keys: tuple[str, ...]


class StateBody(Struct, frozen=True):
    """Jobs of a state; those that are reserved can't be removed."""

    state: str


class Base64(Struct, frozen=True):
    """Bytes that are no text, as answers have them."""

    base64: str


class PushBody(Struct, frozen=True):
    """A job: its payload, and its options, such as ``priority`` or ``delay``."""

    payload: str | Base64
    options: dict[str, Any] = {}

    def data(self) -> bytes:
        """Return the payload; raises BadFrames where it is no base64."""
        if isinstance(self.payload, str):
            return self.payload.encode()
        try:
            return b64decode(self.payload.base64, validate=True)
        except ValueError as error:
            raise BadFramesError(f"payload.base64: {error}") from None


class WorkerBody(Struct, frozen=True):
    """The name of a worker, as in the list of workers."""

    name: str


class CancelBody(Struct, frozen=True):
    """Cancel a job that runs, too; and the children for which it waits."""

    running: bool = False
    children: bool = False


class ChangeBody(Struct, frozen=True):
    """Another priority, another delay from now on, or both."""

    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    delay: Annotated[float, Meta(ge=0, description="seconds")] | None = None

    def fields(self) -> dict[str, Any]:
        """Return what is given."""
        return _given({"priority": self.priority, "delay": self.delay})


class DeadBody(Struct, frozen=True):
    """Dead letters, the oldest first: ``all`` of them, or those that match all else that is given."""

    all: bool = False
    ids: Annotated[tuple[str, ...], Meta(max_length=wire.MOST_IDS)] | None = None
    reason: Part | None = None
    since: Time | None = None
    until: Time | None = None
    error: Error | None = None
    place: Place | None = None
    kind: str | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None

    def which(self) -> dict[str, Any]:
        """Return the choice; raises BadFrames if nothing is chosen."""
        given = _given({name: getattr(self, name) for name in CHOICE})
        if not given and not self.all:
            raise BadFramesError(f"choose dead letters by {', '.join(CHOICE)}, or all: true")
        return {**given, "ids": list(self.ids)} if self.ids is not None else given


class RedriveBody(DeadBody, frozen=True):
    """Dead letters that become ready again, in their own queue or in the queue ``to``."""

    to: str | None = None


class ScheduleBody(Struct, frozen=True):
    """A recurring job: by a ``cron`` expression in a ``timezone``, or ``every`` number of seconds."""

    queue: str
    payload: str
    cron: str | None = None
    timezone: str | None = None
    every: float | None = None
    misfire: Literal["skip", "one", "all"] | None = None
    options: dict[str, Any] | None = None

    def fields(self, name: str) -> dict[str, Any]:
        """Return the schedule as the verb SCHEDULE takes it."""
        optional = ("cron", "timezone", "every", "misfire", "options")
        given = _given({key: getattr(self, key) for key in optional})
        return {"name": name, "queue": self.queue, "payload": self.payload.encode(), **given}


class LoginBody(Struct, frozen=True):
    """A token, or a user and a password."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
