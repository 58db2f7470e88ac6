"""Majority transactions: they move jobs and insert others, all of it or nothing.

Every transaction of the store goes this way::

    read -> apply, in a transaction -> committed
      ^       |
      |       +-- Overtaken: another broker has changed what was read; read again
      |       +-- a write conflict, or the primary steps down: wait a moment, apply again
      |       +-- too old, too large, in conflict too often: Aborted, and the caller tries with fewer items
      '-------'

Killed, or reply lost: the whole transaction is stored or nothing of it. The driver repeats a commit whose
reply was lost, under the transaction's number. If the repetition is not answered either, the error is
:class:`~sluicemq_broker.store.errors.Unclear`, and the caller reads what is stored.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

import gevent
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, NetworkTimeout, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from sluicemq.protocol.errors import DifferentStoreError, SluiceError, UnavailableError
from sluicemq_broker.job import Job
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import Doubtful, ServerCode, Unclear, brief, translated
from sluicemq_broker.store.jobs.outcomes import taken_over, uncertain
from sluicemq_broker.store.values import BY_ID, Document

if TYPE_CHECKING:
    from sluicemq_broker.store.jobs.queue_store import QueueStore

Items = TypeVar("Items", bound=Sized)
Result = TypeVar("Result")

#: The server's codes for a transaction that was too old (the server has forgotten it, or ended it for its
#: age, or a statement took too long), and for one that was too large.
_TOO_MUCH: Final = {
    ServerCode.MAX_TIME_EXPIRED,
    ServerCode.NO_SUCH_TRANSACTION,
    ServerCode.TIME_LIMIT_EXCEEDED,
    ServerCode.TRANSACTION_LIFETIME_EXCEEDED,
    ServerCode.TRANSACTION_TOO_LARGE,
    ServerCode.TRANSACTION_TOO_LARGE_FOR_CACHE,
}
#: Seconds for which a transaction that was broken off, by conflicts or by a change of primary, is applied
#: again before its caller gets an error, as long as an answer of MongoDB may take; and how often at least.
_PATIENCE: Final = 15.0
_LEAST_TRIES: Final = 12


class Overtaken(Exception):
    """Another broker was first: the transaction is not carried out."""


class Aborted(Unclear):
    """MongoDB has not carried out a transaction of many items, and may take one of fewer.

    ``usual``: a conflict of every day, as other brokers write to its documents meanwhile.
    """

    def __init__(self, text: str, *, usual: bool = False) -> None:
        super().__init__(text)
        self.usual = usual


class _Broken(Exception):
    """MongoDB has broken a transaction off, and nothing of it is stored; ``cause`` is None at its commit."""

    def __init__(self, cause: PyMongoError | None) -> None:
        super().__init__()
        self.cause = cause

    @property
    def conflict(self) -> bool:
        return ServerCode.WRITE_CONFLICT in _codes(self.cause)

    @property
    def too_much(self) -> bool:
        """True if fewer items may be possible."""
        return self.cause is None or isinstance(self.cause, NetworkTimeout) or _is_too_much(self.cause)

    def __str__(self) -> str:
        return "at its commit" if self.cause is None else brief(self.cause)


def transact(
    client: Client,
    read: Callable[[], Items],
    apply: Callable[[Items, ClientSession], Result],
    who: str,
) -> Result:
    """Call ``apply`` in a transaction, with the items that ``read`` has found just before it.

    ``apply`` raises :class:`Overtaken` where an item is no longer as it was found; an id that exists by now
    counts as that, too. Then nothing is stored, and ``read`` is called again. ``who`` names the items in
    errors, in the plural.

    A conflict, or a change of primary, is MongoDB's to repeat: the caller hears of it only where it lasts.
    Raises :class:`Aborted` where fewer items may be possible, :class:`Doubtful` or :class:`Unclear` for one
    item alone, :class:`DifferentStore` on a MongoDB without transactions, :class:`Unavailable` where other
    brokers are first every time, and the errors of every statement. A transaction of one item that MongoDB
    ends at its commit is tried twice: a busy machine may be the cause.
    """
    with translated():
        items, overtaken, broken = read(), 0, 0
        until = time.monotonic() + _PATIENCE
        while True:
            began = time.monotonic()
            try:
                return _carried_out(client, partial(apply, items), who)
            except Overtaken:
                overtaken += 1
                # How often a caller reads again after other brokers have changed what it had read.
                if overtaken == 5:
                    text = f"others push or change the jobs of {who} all the time; try again"
                    raise UnavailableError(text) from None
                items = read()
            except _Broken as error:
                broken += 1
                _give_up(error, broken, len(items), who, patient=time.monotonic() < until)
                _wait(broken, time.monotonic() - began)


def _give_up(error: _Broken, times: int, count: int, who: str, *, patient: bool) -> None:
    """Raise the caller's error, unless applying the transaction again may succeed."""
    text = f"MongoDB has ended a transaction of {count} {who}: {error}"
    by_chance = error.cause is None and count == 1 and times == 1
    if error.too_much and not by_chance:
        kind = Doubtful if isinstance(error.cause, OperationFailure) else Unclear
        raise (Aborted(text) if count > 1 else kind(text)) from error.cause
    # Conflicts in a row after which a transaction of many items is tried with fewer.
    if count > 1 and error.conflict and times >= 3:
        raise Aborted(text, usual=True) from error.cause
    if times >= _LEAST_TRIES and not patient:
        if error.conflict:
            raise UnavailableError(f"others change these {who} all the time: nothing was changed, try again")
        raise error.cause or Unclear(text)


def _wait(times: int, took: float) -> None:
    """Wait a random part of a time that doubles, so that two brokers in conflict don't meet again.

    The time begins with how long the transaction took: the other one may take as long still.
    """
    # Seconds: the shortest upper bound of the wait after a conflict, and the longest.
    longest = min(max(0.004, took) * 2 ** (times - 1), 0.5)
    gevent.sleep(random.uniform(0.0, longest))  # noqa: S311 - no secret


def check_statements(statements: int, count: int, who: str) -> None:
    """Raise :class:`Aborted` where ``count`` items take too many statements for one transaction."""
    # Statements of one transaction, at most, unless it has one item: 50 ms each are a fifth of the ten
    # seconds that the server is advised to give it.
    if statements > 40 and count > 1:
        text = f"{who} are in too many queues: {count} at once take {statements} statements"
        raise Aborted(text, usual=True)


def require_all(changed: int, wanted: int) -> None:
    """Raise :class:`Overtaken` where a statement changed fewer documents than it was to change."""
    if changed < wanted:
        raise Overtaken


class OfJob(Protocol):
    """A verdict on one job."""

    @property
    def job(self) -> Job:
        """The job, with the reservation under which its worker has it."""


Verdict = TypeVar("Verdict", bound=OfJob)


class Move(ABC, Generic[Verdict]):
    """One batch of verdicts on jobs of one owner, each of which moves a job; carried out by :meth:`run`.

    The first try reads nothing: it expects that each job is reserved still. Where a statement changes fewer
    documents than expected (:func:`require_all`), the next try reads the jobs, moves those that can be moved,
    and says of the others in ``problems`` why not. A verdict that was carried out before its reply was lost
    is neither moved again nor a problem: a majority has it.
    """

    who: ClassVar[str]
    """The verdicts in errors, in the plural."""
    recognized_by: ClassVar[Document]
    """Fields that :meth:`is_done` reads in the source queue."""

    def __init__(self, source: QueueStore, verdicts: Sequence[Verdict], now: float) -> None:
        self.problems: dict[str, SluiceError] = {}
        self.tries = 0
        self._source = source
        self._verdicts = verdicts
        self._now = now

    def run(self) -> dict[str, SluiceError]:
        """Carry the batch out as :func:`transact`; return the ids of jobs that did not move, and why."""
        self._source.lift([verdict.job for verdict in self._verdicts])
        transact(self._source.jobs.database.client, self._read, self._apply_all, self.who)
        return self.problems

    @abstractmethod
    def apply(self, verdicts: Sequence[Verdict], session: ClientSession) -> None:
        """Write the moves; raise :class:`Overtaken` where a job is no longer as expected."""

    @abstractmethod
    def is_done(self, verdict: Verdict, stored: Mapping[str, Any]) -> bool:
        """Return True if an earlier try carried the verdict out; ``stored`` is empty for a missing job."""

    def read_targets(self) -> None:
        """Read in other queues what :meth:`is_done` and :meth:`obstacle` need."""

    def obstacle(self, _verdict: Verdict) -> SluiceError | None:
        """Return why a job that is reserved still can't be moved."""
        return None

    def _read(self) -> Sequence[Verdict]:
        self.tries += 1
        if self.tries == 1:
            return self._verdicts
        stored = self._read_source()
        self.read_targets()
        self.problems = {}
        movable = []
        for verdict in self._verdicts:
            job, found = verdict.job, stored.get(verdict.job.id, {})
            if (found.get("owner"), found.get("hold")) == job.reservation:
                problem = self.obstacle(verdict)
            elif self.is_done(verdict, found):
                continue
            else:
                problem = taken_over(job.id) if found else uncertain(job.id)
            if problem is None:
                movable.append(verdict)
            else:
                self.problems[job.id] = problem
        return movable

    def _apply_all(self, verdicts: Sequence[Verdict], session: ClientSession) -> None:
        if verdicts:
            self.apply(verdicts, session)

    def _read_source(self) -> dict[str, Document]:
        """Read the jobs by their ids; a later job of an id has another ``seq``."""
        numbers = {verdict.job.id: verdict.job.seq for verdict in self._verdicts}
        fields = {"seq": 1, "owner": 1, "hold": 1, **self.recognized_by}
        found = self._source.known.find({"_id": {"$in": list(numbers)}}, fields, hint=BY_ID)
        return {
            document["_id"]: document for document in found if numbers[document["_id"]] == document.get("seq")
        }


def insert_with(
    queue: QueueStore,
    jobs: Sequence[Job],
    now: float,
    also: Callable[[Sequence[Job], ClientSession], bool],
    who: str,
) -> Sequence[Job] | None:
    """Insert the jobs whose ids are not in the queue, and call ``also`` with them in that transaction.

    Return them, or None where ``also`` returned False: it has written nothing then, and nothing is inserted.
    Raises as :func:`transact`.
    """

    def read() -> Sequence[Job]:
        existing = queue.which_exist([job.id for job in jobs])
        return [job for job in jobs if job.id not in existing]

    def apply(new: Sequence[Job], session: ClientSession) -> Sequence[Job] | None:
        if not also(new, session):
            return None
        if new:
            queue.insert_within(session, new, now)
        return new

    queue.prepare(again=True)  # a transaction can't make a collection's indexes
    return transact(queue.jobs.database.client, read, apply, who)


def _carried_out(client: Client, apply: Callable[[ClientSession], Result], who: str) -> Result:
    try:
        with client.start_session() as session:
            # failpoint *.commit
            return session.with_transaction(
                _once(apply), read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
            )
    except BulkWriteError as error:
        if _codes(error) != {ServerCode.DUPLICATE_KEY}:
            raise
        raise Overtaken from error
    except OperationFailure as error:
        if _is_too_much(error):  # its commit
            raise _Broken(error) from error
        if error.code != ServerCode.ILLEGAL_OPERATION:  # on a stand-alone
            raise
        raise DifferentStoreError(f"a stand-alone MongoDB has no transactions, which {who} need") from error


def _once(apply: Callable[[ClientSession], Result]) -> Callable[[ClientSession], Result]:
    """Wrap ``apply`` for the driver, which would repeat it silently for two minutes.

    An error after which the driver would repeat it is raised as :class:`_Broken`, which the driver ignores.
    """
    begun: list[bool] = []

    def apply_once(session: ClientSession) -> Result:
        if begun:  # the commit was refused
            raise _Broken(None)
        begun.append(True)
        try:
            return apply(session)
        except PyMongoError as error:
            if error.has_error_label("TransientTransactionError") or _is_too_much(error):
                raise _Broken(error) from error
            raise

    return apply_once


def _is_too_much(error: PyMongoError) -> bool:
    return bool(_codes(error) & _TOO_MUCH)


def _codes(error: PyMongoError | None) -> set[int | None]:
    """Return the server's codes of an error."""
    if isinstance(error, BulkWriteError):
        return {failure.get("code") for failure in error.details["writeErrors"]}
    return {error.code} if isinstance(error, OperationFailure) else set()
