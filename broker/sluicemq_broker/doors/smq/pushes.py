"""The verb PUSH: jobs of sessions, which are not read while a queue has too much of them on its way."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq.protocol.options import RESULT
from sluicemq.protocol.permissions import Action
from sluicemq_broker.doors.inflow import Inflow
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.fields import Fields, check_count, job_entry, listed, take
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Queue
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import Caller, authorize
from sluicemq_devices.hub import Watermark, nothing

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session


class Pushes:
    """All jobs of sessions on their way to MongoDB, bounded by the high-water marks of the broker."""

    def __init__(self, services: Services) -> None:
        self._queues = services.queues
        self._maker = services.maker
        self._counters = services.counters
        settings = services.settings
        self.inflow = Inflow(Watermark(settings.hwm, settings.hwm_bytes, nothing, nothing), services.counters)

    def push(self, session: Session, number: int, fields: Fields) -> None:
        """Answer a PUSH once each of its jobs is durable or refused; raises what refuses all of them."""
        name, entries = take(fields, str, list)
        self._counters.add(Count.RECEIVED, len(entries))
        try:
            queue = self._open(name, entries, session)
        except SluiceError:
            self._counters.add(Count.REFUSED, len(entries))
            raise
        jobs, positions, refused = self._jobs(queue, entries, session.caller)
        full = self._cut(queue, jobs, positions)
        if not jobs:
            session.lane.blame(malformed=bool(refused))
            self._answer(session, number, queue.name, [], refused, full, {}, {})
            return
        answer = partial(self._answer, session, number, name, positions, refused, full)
        self.inflow.push(queue, jobs, session.lane, answer, by=session)

    def _open(self, name: str, entries: list[Any], session: Session) -> Queue:
        """Return the queue for some jobs; raises what refuses all of them."""
        if not session.door.accepting:
            raise UnavailableError("the broker stops: push again when it is back")
        check_count(entries, "a PUSH", "jobs")
        queue = self._queues.for_push(name, by=session.name, peer=session.caller.maker, caller=session.caller)
        queue.capacity.admit()
        return queue

    def _jobs(
        self, queue: Queue, entries: list[Any], caller: Caller
    ) -> tuple[list[Job], list[int], dict[int, SluiceError]]:
        make, settings = self._maker.make, queue.settings
        jobs: list[Job] = []
        positions: list[int] = []
        refused: dict[int, SluiceError] = {}
        for at, entry in enumerate(entries):
            try:
                job_id, payload, headers = job_entry(entry)
                job = make(caller, settings, payload, headers, job_id)
                if headers and headers.get("reply") == RESULT:
                    if not caller.name:  # nobody could say later whose job it was
                        authorize(caller, Action.READ, queue.name)
                    job.keep_result(settings.remember)
                jobs.append(job)
                positions.append(at)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                refused[at] = refusal(error)
        return jobs, positions, refused

    def _cut(self, queue: Queue, jobs: list[Job], positions: list[int]) -> dict[int, SluiceError]:
        """Cut the jobs for which the queue has no room; returns their refusals by position."""
        if len(jobs) <= queue.capacity.room:
            return {}
        room = int(queue.capacity.room)
        error = queue.capacity.refusal()
        full: dict[int, SluiceError] = dict.fromkeys(positions[room:], error)
        del jobs[room:], positions[room:]
        self._counters.add(Count.REFUSED, len(full))
        self._counters.notice(Count.QUEUE_FULL, str(error))
        return full

    def _answer(
        self,
        session: Session,
        number: int,
        name: str,
        positions: list[int],
        unreadable: dict[int, SluiceError],
        full: dict[int, SluiceError],
        refused: dict[int, SluiceError],
        existing: Mapping[int, str],
    ) -> None:
        problems = unreadable | full | {positions[at]: error for at, error in refused.items()}
        for error in unreadable.values():
            self._counters.add(Count.UNREADABLE)
            self._counters.refused(error, f"a job from {session.name}: {error}")
        known: list[list[Any]] = []
        if existing:
            may_read = session.caller.may(Action.READ, name)
            known = [
                [positions[at] for at in existing],
                [(may_read and state) or None for state in existing.values()],
            ]
        session.send(wire.OK, number, listed(problems), *known)
