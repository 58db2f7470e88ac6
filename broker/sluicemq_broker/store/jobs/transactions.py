"""Majority transactions: moving jobs on and inserting others, all of it or nothing.

Every transaction of this package goes this way::

    look -> apply, in a transaction -> committed
      ^       |
      |       +-- Overtaken: others have changed what was looked at; look again
      |       +-- a write conflict, or the primary steps down: wait a moment, apply again
      |       +-- too old, too large, in conflict too often: Aborted, and the caller tries with fewer items
      '-------'

Kill or lost reply: either all of a transaction is there or none of it. The driver asks again for a commit
whose reply was lost, under the transaction's number; if that is not answered either, the error is
:class:`~sluicemq_broker.store.errors.Unclear`, and the caller looks what holds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Any, Final, TypeVar

import gevent
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, NetworkTimeout, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from sluicemq.protocol.errors import DifferentStore, Unavailable
from sluicemq_broker.job import Job
from sluicemq_broker.store.errors import Doubtful, Unclear, brief, translated
from sluicemq_broker.store.jobs.queue_store import QueueStore

Seen = TypeVar("Seen", bound=Sized)
Result = TypeVar("Result")

_NO_TRANSACTIONS: Final = 20  # the server's code on a stand-alone: IllegalOperation
_DUPLICATE_KEY: Final = 11000
_WRITE_CONFLICT: Final = 112
#: The server's codes for a transaction that was too old (the server has forgotten it, or ended it for its
#: age, or a statement took too long), and for one that was too large.
_TOO_OLD: Final = {50, 251, 262, 290}
_TOO_LARGE: Final = {257, 388}
#: How often a caller looks again what others have changed in the meantime.
_TRIES: Final = 5
#: Conflicts in a row after which a transaction of many items is tried with fewer.
_CONFLICTS: Final = 3
#: How often a transaction is broken off, by conflicts or by a change of primary, until its caller hears of
#: it: within some two seconds.
_MOST_BROKEN: Final = 12
#: Seconds: the first wait after a conflict has at least so many, and the longest at most.
_FIRST_WAIT: Final = 0.004
_LONGEST_WAIT: Final = 0.5
#: Statements of one transaction, at most, unless it has one item: 50 ms each are a fifth of the ten seconds
#: that the server is advised to give it.
_MOST_STATEMENTS: Final = 40

_TRANSIENT: Final = "TransientTransactionError"


class Overtaken(Exception):
    """Somebody else was first: the transaction is not carried out."""


class Aborted(Unclear):
    """MongoDB has not carried out a transaction of many items, and may take one of fewer.

    ``usual``: that happens on any day, as other brokers write to the same documents at the same time.
    """

    def __init__(self, text: str, *, usual: bool = False) -> None:
        super().__init__(text)
        self.usual = usual


class _Broken(Exception):
    """MongoDB has broken a transaction off, and nothing of it holds; None: at its commit."""

    def __init__(self, cause: PyMongoError | None) -> None:
        super().__init__()
        self.cause = cause

    @property
    def conflict(self) -> bool:
        return _WRITE_CONFLICT in _codes(self.cause)

    @property
    def too_much(self) -> bool:
        """True if fewer items may be possible."""
        return self.cause is None or isinstance(self.cause, NetworkTimeout) or _is_too_much(self.cause)

    def __str__(self) -> str:
        return "at its commit" if self.cause is None else brief(self.cause)


def transact(
    client: MongoClient[dict[str, Any]],
    look: Callable[[], Seen],
    apply: Callable[[Seen, ClientSession], Result],
    who: str,
) -> Result:
    """Carry out ``apply``, in one transaction, on the items that ``look`` has found just before it.

    ``apply`` raises :class:`Overtaken` where they do not hold any more, as an id that has come up
    meanwhile does by itself: then nothing is carried out, and ``look`` is called again. ``who`` needs it, in
    the plural, for the errors: :class:`Aborted` where fewer items may be possible, :class:`Doubtful` where
    there is one alone; :class:`DifferentStore` on a MongoDB without transactions; :class:`Unavailable` where
    others are first all the time, and those of every statement.
    """
    with translated():
        seen, overtaken, broken = look(), 0, 0
        while True:
            began = time.monotonic()
            try:
                return _carried_out(client, partial(apply, seen), who)
            except Overtaken:
                overtaken += 1
                if overtaken == _TRIES:
                    text = f"others push or change the jobs of {who} all the time; try again"
                    raise Unavailable(text) from None
                seen = look()
            except _Broken as error:
                broken += 1
                _give_up(error, broken, len(seen), who)
                _wait(broken, time.monotonic() - began)


def _give_up(error: _Broken, times: int, count: int, who: str) -> None:
    """Raise what the caller is to know, unless applying the transaction again may do."""
    text = f"MongoDB has ended a transaction of {count} {who}: {error}"
    if error.too_much:
        kind = Doubtful if isinstance(error.cause, OperationFailure) else Unclear
        raise (Aborted(text) if count > 1 else kind(text)) from error.cause
    if count > 1 and error.conflict and times >= _CONFLICTS:
        raise Aborted(text, usual=True) from error.cause
    if times >= _MOST_BROKEN:
        raise error.cause or Unclear(text)


def _wait(times: int, took: float) -> None:
    """Wait for a random part of a time that doubles: who was in conflict with us must not be so again.

    It begins with how long the transaction took, which is how long the other one may take still.
    """
    longest = min(max(_FIRST_WAIT, took) * 2 ** (times - 1), _LONGEST_WAIT)
    gevent.sleep(random.uniform(0.0, longest))  # noqa: S311 - no secret


def check_statements(statements: int, count: int, who: str) -> None:
    """Raise :class:`Aborted` where ``count`` items take too many statements for one transaction."""
    if statements > _MOST_STATEMENTS and count > 1:
        text = f"{who} are in so many queues that {count} at once take {statements} statements"
        raise Aborted(text, usual=True)


def insert_with(
    queue: QueueStore,
    jobs: Sequence[Job],
    now: float,
    also: Callable[[Sequence[Job], ClientSession], bool],
    who: str,
) -> Sequence[Job] | None:
    """Insert the jobs whose ids are not there, and carry out ``also``, which gets these jobs.

    Returns them; None where ``also`` says, by False, that this is not to be: then nothing is inserted, and it
    has written nothing itself. Raises as :func:`transact`.
    """

    def look() -> Sequence[Job]:
        there = queue.which_exist([each.id for each in jobs])
        return [each for each in jobs if each.id not in there]

    def apply(new: Sequence[Job], session: ClientSession) -> Sequence[Job] | None:
        if not also(new, session):
            return None
        if new:
            queue.insert_within(session, new, now)
        return new

    queue.prepare(anew=True)  # no transaction can make a collection's indexes
    return transact(queue.jobs.database.client, look, apply, who)


def _carried_out(
    client: MongoClient[dict[str, Any]], apply: Callable[[ClientSession], Result], who: str
) -> Result:
    try:
        with client.start_session() as session:
            return session.with_transaction(
                _once(apply), read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
            )
    except BulkWriteError as error:
        if _codes(error) != {_DUPLICATE_KEY}:
            raise
        raise Overtaken from error
    except OperationFailure as error:
        if _is_too_much(error):  # its commit
            raise _Broken(error) from error
        if error.code != _NO_TRANSACTIONS:
            raise
        raise DifferentStore(f"a stand-alone MongoDB has no transactions, which {who} need") from error


def _once(apply: Callable[[ClientSession], Result]) -> Callable[[ClientSession], Result]:
    """``apply`` for the driver, which would carry it out again for two minutes, and say nothing.

    An error that the driver would answer so is raised as :class:`_Broken`, which it does not know.
    """
    begun: list[bool] = []

    def apply_once(session: ClientSession) -> Result:
        if begun:  # the commit was refused
            raise _Broken(None)
        begun.append(True)
        try:
            return apply(session)
        except PyMongoError as error:
            if error.has_error_label(_TRANSIENT) or _is_too_much(error):
                raise _Broken(error) from error
            raise

    return apply_once


def _is_too_much(error: PyMongoError) -> bool:
    return bool(_codes(error) & (_TOO_OLD | _TOO_LARGE))


def _codes(error: PyMongoError | None) -> set[int | None]:
    """The server's codes for what is wrong."""
    if isinstance(error, BulkWriteError):
        return {each.get("code") for each in error.details["writeErrors"]}
    return {error.code} if isinstance(error, OperationFailure) else set()
