"""Requests of one session that ask MongoDB: each waits in a greenlet for the one before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.admin import READ_PACKED_SENT
from sluicemq_broker.doors.requests import MOST_UNREAD
from sluicemq_broker.doors.smq.fields import Fields, seconds_to_wait, take
from sluicemq_broker.doors.smq.verbs import AdminVerb, Computed
from sluicemq_broker.queues import Task
from sluicemq_broker.runtime import Batcher, QuerySlots
from sluicemq_broker.security import Act, Caller, Door, plain, require_known
from sluicemq_devices.sockets import SMALL

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session


#: Makes what a request waits for.
Turn = Callable[[], AbstractContextManager[Any]]

log = logging.getLogger("broker.sessions")


class AdminBounds:
    """The bounds that the administrative requests of all sessions share: their number, bytes of answers.

    An answer is expected to have as many bytes as the last ones; one with jobs, three times those of the
    largest job.
    """

    def __init__(self, max_job_bytes: int) -> None:
        # Requests of all sessions that are answered at one time, but those that wait for no other: they
        # share the connections to MongoDB with the jobs.
        self.slots = QuerySlots(8)
        self._most = READ_PACKED_SENT * max_job_bytes
        self._latest: dict[AdminVerb, int] = {}

    def expect(self, verb: AdminVerb) -> int:
        """Return how many bytes to reserve for the next answer."""
        return self._most if verb.weigh else max(SMALL, self._latest.get(verb, 0))

    def note(self, verb: AdminVerb, size: int) -> None:
        """Note how many bytes an answer had."""
        self._latest[verb] = max(size, self._latest.get(verb, 0) * 7 // 8)


class AdminRequests:
    """The administrative requests of one session, and others of its steps that ask MongoDB."""

    def __init__(self, session: Session) -> None:
        self.later: Batcher[Callable[[], None]] = Batcher(lambda batch: batch[0](), size=1)
        self._session = session
        self._bounds = session.door.admin_bounds
        self._user = self._bounds.slots.user()

    @property
    def busy(self) -> bool:
        """Return whether a request is not answered."""
        return self.later.busy

    def ask(self, name: bytes, number: int, fields: Fields, verb: AdminVerb) -> None:
        """Answer a request after those before it; raises what refuses it. ``name``: of the verb."""
        caller, subject = self._session.caller, verb.subject(self._session)
        act = self._act(name, fields, verb) if verb.is_act(fields) else None
        with act or nullcontext():
            verb.needs.ask(caller, verb.needs.named_in(fields))
            wait = seconds_to_wait(fields[len(verb.types) :]) if verb.takes_long else None
            request = _Request(number, caller, subject, verb, _arguments(fields, verb), act)
        turn = nullcontext if verb.at_once else self._user.slot
        if verb.reads:
            self.later.add(partial(self._read, request, turn))
        else:
            self.later.add(partial(self._change, request, turn, wait))
        if len(self.later) > MOST_UNREAD:
            self._session.pause_reading()

    def answer(self, number: int, question: Callable[[], Any]) -> None:
        """Answer what ``question()`` returns or raises."""
        self._shielded(number, lambda: self._session.send(wire.OK, number, question()))

    def _act(self, name: bytes, fields: Fields, verb: AdminVerb) -> Act:
        """Return the administrative act that a request is."""
        queue, arguments = verb.needs.named_in(fields), verb.arguments(fields)
        about = arguments.get("about")
        subject = queue if queue is not None else about.get("name") if isinstance(about, dict) else None
        return self._session.door.audit.act(
            self._session.caller,
            Door.SMQ,
            verb.audit_name(name, fields),
            subject if isinstance(subject, str) else "",
            arguments,
            queue if isinstance(queue, str) else None,
        )

    def _change(self, request: _Request, turn: Turn, wait: float | None) -> None:
        """Carry out a change when it is its turn; an administrative one ends with its client until then.

        The change is not made for a client that has gone on over another connection: a pause that it has
        asked for again there may be resumed by now.
        """
        with turn():
            if not (request.act and self._session.disconnected):
                step = _refuse_late if self._session.superseded else partial(self._do, request, wait)
                self._shielded(request.number, step)

    def _read(self, request: _Request, turn: Turn) -> None:
        """Answer a request that changes nothing, when earlier answers were read and there is memory."""
        if not self._session.disconnected:
            self._shielded(request.number, partial(self._read_in_turn, request, turn))

    def _read_in_turn(self, request: _Request, turn: Turn) -> None:
        session, verb, ration = self._session, request.verb, self._session.lane.ration
        size = self._bounds.expect(verb)
        if verb.weigh and not ration.fits(size):
            with turn():
                size = verb.weigh(request.subject, *request.fields)
        while ration.reserve(size):
            try:
                with turn():
                    if session.disconnected:
                        return
                    answer = self._make_answer(request)
                weight = len(answer[-1])
                self._bounds.note(verb, weight)
                if weight <= size or ration.fits(weight - size):
                    session.post(answer)
                    return
            finally:
                ration.release(size)
            size = weight  # it was larger than expected, and others have taken the memory

    def _make_answer(self, request: _Request) -> list[bytes]:
        """Return the answer as it is sent; what takes time but no waiting is done in the peer's turns."""
        found = request.ask()
        return self._session.lane.work(lambda: request.encoded(found))

    def _do(self, request: _Request, wait: float | None) -> None:
        found = request.ask()
        if isinstance(found, Task):  # a task goes on by itself, so later requests don't wait for it
            step = partial(self._answer_outcome, request, found, wait)
            gevent.spawn(self._shielded, request.number, step)
        else:
            self._session.post(self._session.lane.work(lambda: request.encoded(found)))

    def _answer_outcome(self, request: _Request, task: Task, wait: float | None) -> None:
        outcome = task.outcome(wait)
        request.require_permission()
        self._session.send(wire.OK, request.number, outcome)

    def _shielded(self, number: int, step: Callable[[], None]) -> None:
        session = self._session
        try:
            step()
        except SluiceError as error:
            session.answer(number, error)
        except Exception:  # the client must have an answer
            log.exception("an administrative request of %s failed", session.name)
            session.send(
                wire.ERROR, number, UnavailableError.code, "the broker failed on this; its log says why"
            )
        if not len(self.later):
            self._user.answered()
            session.resume_reading()


def _refuse_late() -> None:
    raise UnavailableError("its client has gone on over another connection: not done")


def _arguments(fields: Fields, verb: AdminVerb) -> Fields:
    """Return the fields that the method of a verb takes; raises BadFrames."""
    needed = take(fields, *verb.types)
    rest = fields[len(needed) :]
    return needed + [take(rest[at:] or [None], kind)[0] for at, kind in enumerate(verb.optional)]


class _Request(NamedTuple):
    """One administrative request: its number, who asks, the subject that answers, its verb and fields.

    ``act``: what the audit records of it; None: nothing.
    """

    number: int
    caller: Caller
    subject: object
    verb: AdminVerb
    fields: list[Any]
    act: Act | None = None

    def encoded(self, found: Any) -> list[bytes]:
        """Return the frames of the answer, as far as the caller may see what was found."""
        answer = found.make() if isinstance(found, Computed) else found
        return wire.encode(wire.OK, self.number, self.verb.needs.show(self.caller, answer))

    def ask(self) -> Any:
        """Return what was found or done; may wait for MongoDB."""
        if self.act is None:
            return plain(self._answer())
        with self.act:
            answer = self._answer()
        if isinstance(answer, Task):
            self.act.begun(answer.id, answer.outcome)
        else:
            self.act.done(answer)
        return plain(answer)

    def _answer(self) -> Any:
        """Return what the verb's method does.

        It may have waited for long: what the caller needs is asked again.
        """
        needs = self.verb.needs
        self.require_permission()
        needs.ask_more(self.caller, self.subject, *self.fields)
        return self.verb.method(self.subject, *self.fields)

    def require_permission(self) -> None:
        """Raise Forbidden if the caller may not do this by now."""
        require_known(self.caller)
        self.verb.needs.ask(self.caller, self.verb.needs.named_in(self.fields))
