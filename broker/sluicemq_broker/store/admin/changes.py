"""Changes of one job that waits, and what all operations on jobs share.

Each change is one guarded statement on one document: a job that a worker has, or that has ended, is never
touched. A lost reply raises :class:`~sluicemq_broker.store.errors.Unclear`; each method says what repeating
it does.
"""

from __future__ import annotations

from typing import Final

from sluicemq.protocol.errors import BadHeadersError, NotFoundError, SluiceError
from sluicemq_broker.job import State
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.find_packs import find_packed
from sluicemq_broker.store.jobs.indexes import Notice
from sluicemq_broker.store.jobs.lifts import lift_by_id
from sluicemq_broker.store.values import Document, Jobs, date, seconds

#: The states of a job that no broker has, and that has not ended.
WAITS: Final = [State.READY, State.WAITING]


class Operations:
    """Operations on the queue collections of one database.

    ``notice`` is called with transactions that MongoDB has aborted (default: they are logged).
    """

    def __init__(self, database: Documents, notice: Notice | None = None) -> None:
        self.database = durable(database)
        self._notice = notice

    def _jobs(self, queue: str) -> Jobs:
        return self.database[collection(queue)]

    def _lift(self, queue: str, job_id: str, now: float, state: State = State.READY) -> None:
        """Store a job alone that an order about this state names, if it lies in a pack."""
        lift_by_id(self._jobs(queue), job_id, state, now)


class Changes(Operations):
    """Operations on one job that waits: run it now, change its priority, delay or time to live."""

    def promote(self, queue: str, job_id: str, now: float) -> bool:
        """Make a delayed job due now; a job that is due already keeps its place, and False is returned.

        Raises :class:`NotFound` if no such job waits. Repeating it after a lost reply changes nothing.
        """
        # failpoint jobs.promote
        return self._change(queue, job_id, now, {"$min": {"eligible_at": date(now)}}, "promoted")

    def change(
        self, queue: str, job_id: str, now: float, *, priority: int | None = None, due: float | None = None
    ) -> bool:
        """Give a waiting job another priority, or another time at which it is due, or both.

        False: it has them. Raises :class:`BadHeaders` for a time at which it has expired.

        Raises :class:`NotFound` if no such job waits. Repeating it after a lost reply is harmless.
        """
        fields: Document = {} if priority is None else {"priority": priority}
        if due is not None:
            fields["eligible_at"] = date(due)
        # failpoint jobs.change
        return self._change(queue, job_id, now, {"$set": fields}, "changed", due)

    def _change(
        self, queue: str, job_id: str, now: float, update: Document, done: str, due: float | None = None
    ) -> bool:
        lives = {"expires_at": {"$not": {"$lte": date(now if due is None else max(now, due))}}}
        waits = {"_id": job_id, "state": {"$in": WAITS}, **lives}
        self._lift(queue, job_id, now)
        with translated():
            jobs = self._jobs(queue)
            # failpoint *
            found = jobs.update_one(waits, update)
            if not found.matched_count:
                raise not_waiting(jobs, queue, job_id, done, now, due)
            return found.modified_count > 0


def not_waiting(
    jobs: Jobs,
    queue: str,
    job_id: str,
    done: str,
    now: float = 0.0,
    due: float | None = None,
    *,
    running: bool = False,
) -> SluiceError:
    """Return the error for a job that does not wait, with its state; or that expires before it is due.

    ``running``: nor does a worker have it.
    """
    found = jobs.find_one({"_id": job_id}, {"state": 1, "expires_at": 1}) or {}
    if not found and (packed := find_packed(jobs, [job_id]).get(job_id)) is not None:
        found = packed.stored
    state = found.get("state")
    if state == State.READY and "expires_at" in found and seconds(found["expires_at"]) <= now:
        state = "expired"
    elif due is not None and state in WAITS and "expires_at" in found:
        left = seconds(found["expires_at"]) - now
        return BadHeadersError(f"job {job_id!r} expires in {left:.3f} s, and would not be due before that")
    elif state == State.READY:
        state = "ready only since this moment: a worker, or a broker for one, had it. Try again"
    return refusal(job_id, queue, state, f"a job that waits{', or runs,' if running else ''} can be {done}")


def refusal(job_id: str, queue: str, state: str | None, rule: str) -> NotFoundError:
    """Return the error for a job that is not in the state that the rule wants."""
    what = f"is {state}" if state else "is not there"
    return NotFoundError(f"job {job_id!r} {what} in queue {queue!r}: only {rule}")
