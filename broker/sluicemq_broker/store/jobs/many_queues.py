"""One question to many queues: a statement for some fifty of them, instead of one for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pymongo.errors import OperationFailure

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import in_trouble, translated
from sluicemq_broker.store.halving import in_halves
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.unions import Branch, union
from sluicemq_broker.store.values import Document

#: The pipelines of one queue. Each is a branch of the statement, and MongoDB finds an index for each.
Branches = Sequence[Sequence[Document]]


def ask_together(
    database: Documents, queues: Sequence[str], branches: Branches, at_once: int
) -> dict[str, list[Document]]:
    """Return the rows that these branches yield in each queue, asking ``at_once`` queues with one statement.

    A queue that MongoDB refuses to read is left out. Raises :class:`~sluicemq.protocol.errors.Unavailable`.
    """
    found: dict[str, list[Document]] = {}

    def ask(some: Sequence[str]) -> None:
        rows: dict[str, list[Document]] = {queue: [] for queue in some}
        try:
            for row in durable(database)[collection(some[0])].aggregate(union(_named(some, branches))):
                rows[row.pop("queue")].append(row)
        except OperationFailure as error:
            raise error if in_trouble(error) else _Refused from error
        found.update(rows)

    with translated():
        for _ in in_halves(queues, ask, refused=(_Refused,), most=lambda: at_once):
            pass
    return found


class _Refused(Exception):
    """MongoDB does not read one of these queues."""


def _named(queues: Iterable[str], branches: Branches) -> Iterator[Branch]:
    for queue in queues:
        for stages in branches:
            yield Branch(collection(queue), [*stages, {"$addFields": {"queue": {"$literal": queue}}}])
