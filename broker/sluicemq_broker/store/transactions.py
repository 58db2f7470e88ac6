"""Majority transactions: what moves something on and inserts jobs, all of it or nothing.

Kill or lost reply: either all of a transaction is there or none of it. The driver asks again for a commit
whose reply was lost, under the transaction's number; if that is not answered either, the error is
:class:`~sluicemq_broker.store.connection.Unclear`, and the caller looks what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from sluicemq.errors import DifferentStore, Unavailable
from sluicemq_broker.job import Job
from sluicemq_broker.store.connection import translated
from sluicemq_broker.store.queue_store import QueueStore

Seen = TypeVar("Seen")
Result = TypeVar("Result")

_NO_TRANSACTIONS: Final = 20  # the server's code on a stand-alone: IllegalOperation
_DUPLICATE_KEY: Final = 11000
#: How often is looked again what others have changed in the meantime.
_TRIES: Final = 5


class Overtaken(Exception):
    """Somebody else was first: the transaction is not carried out."""


def transact(
    client: MongoClient[dict[str, Any]],
    look: Callable[[], Seen],
    apply: Callable[[Seen, ClientSession], Result],
    who: str,
) -> Result:
    """Carry out ``apply``, in one transaction, on what ``look`` has found just before it.

    ``apply`` raises :class:`Overtaken` where that does not hold any more, as an id that has come up
    meanwhile does by itself: then nothing is carried out, and it is looked again. ``who`` needs it, in the
    plural, for the errors: :class:`DifferentStore` on a MongoDB without transactions,
    :class:`Unavailable` where others are first all the time, and those of every statement.
    """
    with translated():
        for _ in range(_TRIES):
            seen = look()
            try:
                return _carried_out(client, partial(apply, seen), who)
            except Overtaken:
                continue
    raise Unavailable(f"others push or change the jobs of {who} all the time; try again")


def insert_with(
    queue: QueueStore,
    jobs: Sequence[Job],
    now: float,
    also: Callable[[Sequence[Job], ClientSession], bool],
    who: str,
) -> Sequence[Job] | None:
    """Insert the jobs whose ids are not there, and carry out ``also``, which is told which these are.

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
                apply, read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
            )
    except BulkWriteError as error:
        if {each.get("code") for each in error.details["writeErrors"]} != {_DUPLICATE_KEY}:
            raise
        raise Overtaken from error
    except OperationFailure as error:
        if error.code != _NO_TRANSACTIONS:
            raise
        raise DifferentStore(f"a stand-alone MongoDB has no transactions, which {who} need") from error
