"""SMQ/1: the library's door. A session is one connection: it pushes, works, asks, and may vanish.

The protocol is written down in ``sluicemq.wire``; here is one method per verb.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker import __version__
from broker.admin import QUESTIONS, Admin
from broker.batcher import Batcher
from broker.config import BrokerSettings
from broker.counters import Counters
from broker.frames import RESULT, JobMaker
from broker.frontends import FRAME_FACTOR, MOST_UNREAD, refusal
from broker.intake import Push
from broker.job import Job
from broker.queue import Queue
from broker.queues import Queues, check_name
from broker.session_fields import (
    LONGEST_DELAY,
    Fields,
    job_entry,
    listed,
    ready_options,
    take,
    verdict_entry,
)
from broker.session_results import Results
from broker.session_workers import PoppingWorker, SessionWorker
from broker.verdict import Settlement, Verdict
from devices.doors import Lane, LaneDoor
from devices.flow import Watermark
from devices.switchboard import Switchboard
from sluicemq import wire
from sluicemq.errors import BadFrames, BadVerb, BadVersion, LeaseLost, Paused, SluiceError, Unavailable

#: Jobs in one PUSH, and receipts in one SETTLE, at most.
MOST_AT_ONCE: Final = 1000
_MOST_CREDIT: Final = 100_000
#: Seconds that a first look for jobs, or the removal of popped ones, may keep an answer back.
_LOOK: Final = 30.0

log = logging.getLogger("broker.sessions")


class SessionDoor:
    """The SMQ/1 door and its sessions."""

    def __init__(
        self,
        settings: BrokerSettings,
        board: Switchboard,
        queues: Queues,
        maker: JobMaker,
        admin: Admin,
        counters: Counters,
    ) -> None:
        self.settings = settings
        self.queues = queues
        self.maker = maker
        self.admin = admin
        self.counters = counters
        self.taking = True
        self.sessions: set[Session] = set()
        self.mark = Watermark(settings.hwm, settings.hwm_bytes, lambda: None, self._resume)
        # No ZMTP heartbeats: a session that is not read for a while would not answer them in time.
        self.door = LaneDoor(
            board,
            settings.endpoint,
            "DEALER",
            lambda lane: self.sessions.add(Session(self, lane)),
            max_frame=FRAME_FACTOR * settings.max_job_bytes,
            heartbeat=None,
            silence=None,
        )

    def start(self) -> None:
        """Open the door."""
        self.door.start()

    def stop(self) -> None:
        """Close the door."""
        self.door.stop()

    def beat(self) -> None:
        """Every heartbeat: greet the silent, close those that were silent too long."""
        for session in list(self.sessions):
            session.beat(time.monotonic())

    def _resume(self) -> None:
        for session in self.sessions:
            session.read_on()


class Session:
    """One connection of the library."""

    def __init__(self, house: SessionDoor, lane: Lane) -> None:
        self.name = lane.peer
        self.counters = house.counters
        self._house = house
        self._lane = lane
        self._workers: dict[str, SessionWorker] = {}
        self._heard = self._said = time.monotonic()
        self._held_back = False
        self._questions: Batcher[Callable[[], None]] = Batcher(lambda batch: batch[0](), size=1)
        self._results = Results(house.queues, self._questions, self._resulted)
        lane.receive = self._receive
        lane.closed = self._closed
        lane.unblocked = self.read_on

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message; held if the client is slow to read."""
        self._said = time.monotonic()
        self._lane.send(wire.encode(verb, number, *fields))
        held = self._lane.held
        if held.count > MOST_UNREAD or held.bytes > self._house.settings.hwm_bytes:
            self._hold_back()

    @property
    def writable(self) -> bool:
        """Whether the client reads what it is sent."""
        return self._lane.writable

    def read_on(self) -> None:
        """The reason to hold this client back may be over."""
        if self._held_back and not self._house.mark.is_full and not self._lane.backlog:
            self._held_back = False
            self._heard = time.monotonic()
            self._lane.resume()
        for worker in self._workers.values():
            worker.queue.dispatch.offer(worker)

    def hang_up(self) -> None:
        """Close the connection."""
        self._lane.close()

    def beat(self, now: float) -> None:
        """Say that the broker lives; close a client that has said nothing for too long."""
        settings = self._house.settings
        if not self._held_back and now - self._heard > settings.silence:
            self.counters.notice("sessions_silent", f"{self.name} said nothing for {settings.silence} s")
            self._lane.close()
        elif self._lane.writable and now - self._said >= settings.heartbeat / 2:
            self.send(wire.PING, 0)

    def _hold_back(self) -> None:
        if not self._held_back:
            self._held_back = True
            self._lane.pause()

    def _receive(self, messages: list[list[bytes]]) -> None:
        self._heard = time.monotonic()
        for frames in messages:
            self._handle(frames)

    def _handle(self, frames: list[bytes]) -> None:
        number = 0
        try:
            verb, number, fields = wire.decode(frames)
            _handler(verb)(self, number, fields)
        except Exception as error:  # noqa: BLE001 - the client must have an answer, and those after it theirs
            self._refuse(number, refusal(error))

    def _refuse(self, number: int, problem: SluiceError) -> None:
        self.counters.notice(problem.code.lower(), f"from {self.name}: {problem}")
        self.send(wire.ERROR, number, problem.code, str(problem))
        if isinstance(problem, BadVersion):
            self._lane.close()

    def _closed(self) -> None:
        self._house.sessions.discard(self)
        for worker in self._workers.values():
            worker.queue.settle.worker_gone(worker)
        self._workers.clear()
        self._results.forget()

    # ----------------------------------------------------------------- verbs

    def _hello(self, number: int, fields: Fields) -> None:
        (about,) = take(fields, dict)
        client = about.get("client")
        self.name = f"{client[:100]} {self._lane.peer}" if isinstance(client, str) else self._lane.peer
        settings = self._house.settings
        self.send(
            wire.OK,
            number,
            {
                "broker": __version__,
                "heartbeat": settings.heartbeat,
                "silence": settings.silence,
                "max_job_bytes": settings.max_job_bytes,
            },
        )

    def _push(self, number: int, fields: Fields) -> None:
        name, entries = take(fields, str, list)
        if not self._house.taking:
            raise Unavailable("the broker stops: push again when it is back")
        if len(entries) > MOST_AT_ONCE:
            raise BadFrames(f"a PUSH has at most {MOST_AT_ONCE} jobs, this one has {len(entries)}")
        queue = self._house.queues.for_push(name)
        self.counters.add("received", len(entries))
        try:
            queue.admit()
        except Paused:
            self.counters.add("refused", len(entries))
            raise
        jobs, positions, refused = self._jobs(queue, entries)
        size = sum(job.size for job in jobs)
        if not jobs:
            self._pushed(number, 0, 0, [], refused, {}, ())
            return
        self._house.mark.take(len(jobs), size)
        if self._house.mark.is_full:
            self._hold_back()
        queue.push(Push(jobs, partial(self._pushed, number, len(jobs), size, positions, refused)))

    def _jobs(self, queue: Queue, entries: list[Any]) -> tuple[list[Job], list[int], dict[int, SluiceError]]:
        make, settings = self._house.maker.make, queue.settings
        jobs: list[Job] = []
        positions: list[int] = []
        refused: dict[int, SluiceError] = {}
        for at, entry in enumerate(entries):
            try:
                job_id, payload, headers = job_entry(entry)
                job = make(settings, payload, headers, job_id)
                if headers and headers.get("reply") == RESULT:
                    job.remember = settings.remember
                jobs.append(job)
                positions.append(at)
            except SluiceError as error:
                # With its traceback it would be in a cycle, and hold the payload until that is found.
                refused[at] = error.with_traceback(None)
        return jobs, positions, refused

    def _pushed(
        self,
        number: int,
        count: int,
        size: int,
        positions: list[int],
        unreadable: dict[int, SluiceError],
        refused: dict[int, SluiceError],
        existing: Sequence[int],
    ) -> None:
        self.counters.add("repeated", len(existing))
        problems = unreadable | {positions[at]: error for at, error in refused.items()}
        for error in unreadable.values():
            self.counters.add("unreadable")
            self.counters.notice(error.code.lower(), f"a job from {self.name}: {error}")
        known = [sorted(positions[at] for at in existing)] if existing else []
        self.send(wire.OK, number, listed(problems), *known)
        if count:
            self._house.mark.give(count, size)

    def _ready(self, number: int, fields: Fields) -> None:
        name, credit = take(fields, str, int)
        if not 0 <= credit <= _MOST_CREDIT:
            raise BadFrames(f"credit {credit} is not from 0 to {_MOST_CREDIT}")
        pop, look = ready_options(fields[2:])
        queue = self._house.queues.for_push(check_name(name))
        worker = self._workers.get(name)
        if worker and worker.pops != pop:
            raise BadFrames(f"this session works on queue {name!r} with pop {worker.pops}, so not with {pop}")
        waits = look or (pop and not credit)
        if not waits:
            self.send(wire.OK, number, None)
        if worker:
            worker.grant(credit)
        else:
            worker = self._workers[name] = (PoppingWorker if pop else SessionWorker)(self, queue, credit)
            queue.dispatch.attach(worker)
        if waits:
            self._questions.add(partial(self._answer, number, partial(worker.await_supply, _LOOK)))

    def _settle(self, number: int, fields: Fields) -> None:
        (entries,) = take(fields, list)
        if len(entries) > MOST_AT_ONCE:
            raise BadFrames(f"a SETTLE has at most {MOST_AT_ONCE} verdicts, this one has {len(entries)}")
        whole = Settlement(partial(self._settled, number))
        for queue, verdicts in self._by_queue(entries, whole.problems).items():
            whole.pending += 1
            part = Settlement(partial(_join, whole, list(verdicts)))
            queue.settle.settle(list(verdicts.values()), part)
        whole.close()

    def _by_queue(
        self, entries: list[Any], problems: dict[int, SluiceError]
    ) -> dict[Queue, dict[int, Verdict]]:
        """The verdicts on each queue's deliveries by their positions; ``problems`` gets those refused."""
        groups: dict[Queue, dict[int, Verdict]] = {}
        for at, entry in enumerate(entries):
            try:
                verdict = verdict_entry(entry)
                groups.setdefault(self._queue_of(verdict.receipt), {})[at] = verdict
            except BadFrames as error:
                self.counters.notice("bad_verdicts", f"from {self.name}: {error}")
                problems[at] = error.with_traceback(None)
            except LeaseLost as error:
                self.counters.add("late_verdicts")
                problems[at] = error.with_traceback(None)
        return groups

    def _queue_of(self, receipt: bytes) -> Queue:
        """The queue whose worker here has, or owes, this delivery; raises :class:`LeaseLost` if none has."""
        for worker in self._workers.values():
            if receipt in worker.unsettled or receipt in worker.owed:
                return worker.queue
        raise LeaseLost("this receipt is void: the delivery has ended")

    def _settled(self, number: int, problems: dict[int, SluiceError]) -> None:
        self.send(wire.OK, number, listed(problems))

    def _extend(self, number: int, fields: Fields) -> None:
        receipts, seconds = take(fields, list, int | float)
        if not 0 < seconds <= LONGEST_DELAY:
            raise BadFrames(f"{seconds} is no number of seconds above 0")
        if not all(isinstance(receipt, bytes) for receipt in receipts):
            raise BadFrames("a receipt is bin, as DELIVER gave it")
        problems: dict[int, SluiceError] = {}
        for at, receipt in enumerate(receipts):
            if not any(each.queue.dispatch.extend(receipt, each, seconds) for each in self._workers.values()):
                problems[at] = LeaseLost("this receipt is void: the delivery has ended")
        self.send(wire.OK, number, listed(problems))

    def _result(self, number: int, fields: Fields) -> None:
        name, job_id, wait = take(fields, str, str, int | float)
        if not 0 <= wait <= LONGEST_DELAY:
            raise BadFrames(f"{wait} is no number of seconds from 0 to ten years")
        self._results.ask(number, name, job_id, wait)

    def _resulted(self, number: int, outcome: bytes | SluiceError) -> None:
        # Else one large result, asked for thousands of times, would be held so many times.
        if self._lane.held.bytes > self._house.settings.hwm_bytes:
            outcome = Unavailable("results asked for before this one have not been read: ask again")
        if isinstance(outcome, SluiceError):
            self.send(wire.ERROR, number, outcome.code, str(outcome))
        else:
            self.send(wire.OK, number, outcome)

    def _ping(self, number: int, _fields: Fields) -> None:
        self.send(wire.OK, number, None)

    def _bye(self, number: int, _fields: Fields) -> None:
        for worker in self._workers.values():
            worker.queue.settle.worker_gone(worker, died=False)
        self._workers.clear()
        self.send(wire.OK, number, None)

    def _ask(self, number: int, fields: Fields, question: Callable[..., Any], *types: Any) -> None:
        """Administrative verbs ask MongoDB, so they wait in a greenlet, one after the other."""
        arguments = take(fields, *types)
        self._questions.add(partial(self._answer, number, partial(question, self._house.admin, *arguments)))
        if len(self._questions) > MOST_UNREAD:
            self._hold_back()

    def _answer(self, number: int, question: Callable[[], Any]) -> None:
        try:
            self.send(wire.OK, number, question())
        except SluiceError as error:
            self.send(wire.ERROR, number, error.code, str(error))
        except Exception:  # the client must have an answer, whatever went wrong
            log.exception("an administrative request of %s failed", self.name)
            self.send(wire.ERROR, number, Unavailable.code, "the broker failed on this; its log says why")
        if not len(self._questions):
            self.read_on()


_HANDLERS: Final[dict[bytes, Callable[[Session, int, Fields], None]]] = {
    wire.HELLO: Session._hello,  # noqa: SLF001 - the table of verbs is part of the class
    wire.PUSH: Session._push,  # noqa: SLF001
    wire.READY: Session._ready,  # noqa: SLF001
    wire.SETTLE: Session._settle,  # noqa: SLF001
    wire.EXTEND: Session._extend,  # noqa: SLF001
    wire.RESULT: Session._result,  # noqa: SLF001
    wire.PING: Session._ping,  # noqa: SLF001
    wire.BYE: Session._bye,  # noqa: SLF001
}


def _handler(verb: bytes) -> Callable[[Session, int, Fields], None]:
    if verb in QUESTIONS:
        question, *types = QUESTIONS[verb]
        return lambda session, number, fields: session._ask(number, fields, question, *types)  # noqa: SLF001
    handler = _HANDLERS.get(verb)
    if handler is None:
        raise BadVerb(f"unknown verb {verb[:32]!r}")
    return handler


def _join(whole: Settlement, positions: list[int], problems: dict[int, SluiceError]) -> None:
    whole.problems.update({positions[at]: error for at, error in problems.items()})
    whole.close()
