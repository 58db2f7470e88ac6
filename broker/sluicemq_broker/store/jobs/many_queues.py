"""One question to many queues: a statement for some fifty of them, where each had one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pymongo.errors import OperationFailure

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import in_trouble, translated
from sluicemq_broker.store.jobs.documents import QUEUE_PREFIX
from sluicemq_broker.store.values import Document

#: The pipelines of one queue. Each is a branch of the statement, and MongoDB finds an index for each.
Branches = Sequence[Sequence[Document]]


def ask_together(
    database: Documents, queues: Sequence[str], branches: Branches, at_once: int
) -> dict[str, list[Document]]:
    """Return the rows that these branches yield in each queue, asking ``at_once`` queues with one statement.

    A queue that MongoDB refuses to read is left out. Raises :class:`~sluicemq.Unavailable`.
    """
    found: dict[str, list[Document]] = {}
    with translated():
        for first in range(0, len(queues), at_once):
            found |= _ask(durable(database), queues[first : first + at_once], branches)
    return found


def _ask(database: Documents, queues: Sequence[str], branches: Branches) -> dict[str, list[Document]]:
    """Ask these with one statement, or each half of them where MongoDB refuses that."""
    found: dict[str, list[Document]] = {queue: [] for queue in queues}
    try:
        for row in database[QUEUE_PREFIX + queues[0]].aggregate(list(_pipeline(queues, branches))):
            found[row.pop("queue")].append(row)
    except OperationFailure as error:
        if in_trouble(error):
            raise
        half = len(queues) // 2
        return (
            _ask(database, queues[:half], branches) | _ask(database, queues[half:], branches) if half else {}
        )
    return found


def _pipeline(queues: Iterable[str], branches: Branches) -> Iterator[Document]:
    first, *others = (
        (queue, [*branch, {"$addFields": {"queue": {"$literal": queue}}}])
        for queue in queues
        for branch in branches
    )
    yield from first[1]
    for queue, branch in others:
        yield {"$unionWith": {"coll": QUEUE_PREFIX + queue, "pipeline": branch}}
