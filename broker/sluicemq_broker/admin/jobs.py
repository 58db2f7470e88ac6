"""Jobs: one is shown, changed, promoted, cancelled, removed; those of a queue are listed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from sluicemq.protocol.errors import BadFramesError, NotFoundError
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import EndRow, JobPage, JobRow, from_document
from sluicemq.protocol.rules import whole
from sluicemq_broker.context import Context
from sluicemq_broker.queue import Queue, check_headers
from sluicemq_broker.queues import Census, FailedParents, Queues, push_one
from sluicemq_broker.runtime import FLAG, Count, read_json, read_options
from sluicemq_broker.security import Caller, Unchanged, authorize, pay_for_one, visible
from sluicemq_broker.store import (
    MOST_CUT,
    SHOWN_STATES,
    Changes,
    Documents,
    Inspector,
    Listing,
    Removals,
)
from sluicemq_broker.store import JobPage as Page
from sluicemq_devices.hub import in_pieces

_MOST_PEEKED: Final = 1000
_PEEKED_BYTES: Final = 8 * 1024 * 1024
#: Times the bytes of a stored job: it is in memory as it came, unpacked, and as it is sent.
READ_PACKED_SENT: Final = 3


class JobAdmin:
    """The jobs of all queues. Each method raises NotFound for an unknown queue."""

    def __init__(self, queues: Queues, census: Census, context: Context) -> None:
        self._queues = queues
        self._census = census
        self._clock = context.clock
        self._counters = context.counters

    # ------------------------------------------------------------------- read

    def peek(self, name: str, state: str, limit: int, options: dict[str, Any] | None = None) -> list[JobRow]:
        """Return the first jobs of a state, or with a limit below zero the last ones; none is taken.

        ``first`` of the options: that many bytes of each payload and result are enough.
        """
        queue = self._queues.get(name)
        check_state(state)
        if not 1 <= abs(limit) <= _MOST_PEEKED:
            raise BadFramesError(
                f"limit {limit} is not from 1 to {_MOST_PEEKED}, nor from -1 to -{_MOST_PEEKED}"
            )
        first = _first_of(options)
        found = self._inspector(queue).peek(name, state, limit, _PEEKED_BYTES, self._clock.now(), first)
        return [from_document(JobRow, document) for document in in_pieces(found)]

    def show(self, name: str, job_id: str) -> JobRow:
        """Return all that is known of one job, with its worker if that is connected here."""
        queue = self._queues.get(name)
        shown = self._inspector(queue).show(name, job_id, self._clock.now())
        defaults = {key: getattr(queue.settings, key) for key in ("max_attempts", "visibility_timeout")}
        worker = queue.deliveries.worker_with(job_id)
        return from_document(JobRow, {**defaults, **shown, **({"worker": worker.name} if worker else {})})

    def ended(self, name: str, job_id: str | None, limit: int, caller: Caller) -> list[EndRow]:
        """Return how a job ended at this broker, or the latest ends of the queue; asks MongoDB nothing.

        A queue that the caller may not read is not named as the one to which a job was forwarded.
        """
        if not 1 <= limit <= _MOST_PEEKED:
            raise BadFramesError(f"limit {limit} is not from 1 to {_MOST_PEEKED}")
        return visible.ends(caller, self._queues.get(name).ends(job_id, limit))

    def page(self, name: str, state: str, limit: int, after: str | None) -> JobPage:
        """Return jobs of a state behind a cursor, without their payloads."""
        check_state(state)
        found = listing(self._queues, name).page(name, state, limit, place_of(after), self._clock.now())
        return job_page(found)

    def with_ids(self, name: str, beginning: str, limit: int) -> JobPage:
        """Return jobs of any state whose id begins like this."""
        return job_page(listing(self._queues, name).with_ids(name, beginning, limit, self._clock.now()))

    def weigh_peek(self, name: str, state: str, limit: int, options: dict[str, Any] | None = None) -> int:
        """Return about how many bytes of memory a :meth:`peek` takes."""
        queue = self._queues.get(name)
        check_state(state)
        most = max(-_MOST_PEEKED, min(limit, _MOST_PEEKED)) or 1
        first = _first_of(options)
        size = self._inspector(queue).weigh_first(name, state, most, self._clock.now(), first)
        return READ_PACKED_SENT * min(size, 2 * _PEEKED_BYTES)

    def weigh_show(self, name: str, job_id: str) -> int:
        """Return about how many bytes of memory a :meth:`show` takes."""
        return READ_PACKED_SENT * self._inspector(self._queues.get(name)).weigh(name, job_id)

    # ----------------------------------------------------------------- change

    def push(self, name: str, payload: bytes, options: dict[str, Any], caller: Caller) -> str:
        """Push a job of a caller and wait until it is stored; returns its id."""
        pay_for_one(caller.principal)
        queue = self._queues.for_push(name, by="a push by hand", peer=caller.maker, caller=caller)
        queue.capacity.admit()
        job = self._queues.make(caller, queue.settings, payload, options, None)
        self._counters.add(Count.RECEIVED)
        push_one(queue, job)
        return job.id

    def change(self, name: str, job_id: str, fields: dict[str, Any]) -> Unchanged | None:
        """Give a waiting job another priority, or another delay from now on."""
        queue = self._queues.get(name)
        if not fields or fields.keys() - {option.name for option in OPTIONS.values() if option.changeable}:
            raise BadFramesError("a change is a map of priority, delay, or both")
        read = check_headers(fields)
        now = self._clock.now()
        due = now + read["delay"] if "delay" in read else None
        changes = Changes(self._changed(queue))
        if not changes.change(name, job_id, now, priority=read.get("priority"), due=due):
            return Unchanged()
        if due is not None and due > now:
            queue.jobs_due([due])
        else:
            queue.jobs_ready(1)
        return None

    def promote(self, name: str, job_id: str) -> Unchanged | None:
        """Make a delayed job ready now."""
        queue = self._queues.get(name)
        if not Changes(self._changed(queue)).promote(name, job_id, self._clock.now()):
            return Unchanged()
        queue.jobs_ready(1)
        return None

    def cancel(
        self,
        name: str,
        job_id: str,
        options: dict[str, Any] | None,
        caller: Caller,
    ) -> None:
        """Remove one waiting job, or with ``running`` one that a worker has; waiters and worker are notified.

        ``children``: with the children for which it waits, those that run too.
        """
        queue = self._queues.get(name)
        read = read_options(options or {}, {"running": FLAG, "children": FLAG}, "a CANCEL")
        children = self._removals(queue).children_of(name, job_id) if read.get("children") else []
        for other in {child for child, _ in children}:
            authorize(caller, Action.MANAGE, other)
        self._cancel(queue, job_id, running=read.get("running", False))
        for other, child in children:
            with suppress(NotFoundError):  # it has ended, or is in another of the queues
                self._cancel(self._queues.get(other), child, running=True)

    def _cancel(self, queue: Queue, job_id: str, *, running: bool) -> None:
        removed = self._removals(queue).cancel(queue.name, job_id, self._clock.now(), running=running)
        self._counters.add(Count.CANCELLED)
        queue.cancelled(job_id, removed)

    def remove(self, name: str, job_id: str) -> None:
        """Remove one job that no worker has: it waits, is done, or is dead."""
        queue = self._queues.get(name)
        if self._removals(queue).remove_ended(name, job_id, self._clock.now()):
            self._counters.add(Count.PURGED)
            queue.results.check()
        else:
            self._cancel(queue, job_id, running=False)

    def _inspector(self, queue: Queue) -> Inspector:
        queue.store.prepare()
        return Inspector(self._queues.database_of(queue))

    def _removals(self, queue: Queue) -> Removals:
        return Removals(self._changed(queue), FailedParents(self._queues))

    def _changed(self, queue: Queue) -> Documents:
        """Return the database of jobs that are about to change."""
        queue.store.prepare()
        self._census.recount(queue)
        return self._queues.database_of(queue)


def listing(queues: Queues, name: str) -> Listing:
    """Return what lists the jobs of a queue; raises NotFound for an unknown one."""
    queue = queues.get(name)
    queue.store.prepare()
    return Listing(queues.database_of(queue))


def job_page(found: Page) -> JobPage:
    """Return a page of jobs as rows, with the place where the next one begins as a text."""
    place = None if found.next is None else json.dumps(found.next, separators=(",", ":"))
    return JobPage(jobs=tuple(from_document(JobRow, job) for job in found.jobs), next=place)


def place_of(text: str | None) -> list[Any] | None:
    """Return where a page begins, from the ``next`` of the page before it; raises BadFrames."""
    if not text:
        return None
    try:
        place = read_json(text.encode())
    except ValueError:
        place = None
    if not isinstance(place, list) or not all(map(_is_of_a_place, place)):
        raise BadFramesError("after must be the next of the page before")
    return place


def _is_of_a_place(value: Any) -> bool:
    """Return True for what MongoDB can compare: a text, no value, or a number of 64 bits."""
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**63)


def _first_of(options: dict[str, Any] | None) -> int | None:
    first: int | None = read_options(options or {}, {"first": whole(0, MOST_CUT)}, "a PEEK").get("first")
    return first


def check_state(state: str, allowed: Sequence[str] = SHOWN_STATES) -> None:
    """Raise BadFrames for a state that no job is shown in, or that is not allowed here."""
    if state not in allowed:
        raise BadFramesError(f"state {state[:32]!r} is not one of {', '.join(allowed)}")
