"""Creation of collections and indexes: a few at a time, as it takes locks and connections from jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from gevent.lock import BoundedSemaphore
from pymongo.collection import Collection

#: Names of the driver for a MongoDB of several nodes: a standalone refuses a quorum.
_OF_SEVERAL: Final = ("ReplicaSetWithPrimary", "ReplicaSetNoPrimary", "Sharded")

#: A collection with its indexes takes MongoDB some 30 ms, with locks that others wait for.
_turns = BoundedSemaphore(2)


@contextmanager
def one_of_few() -> Iterator[None]:
    """Wait for a turn, but not for long."""
    # Seconds to wait for a turn, at most: where MongoDB does not answer, each caller finds that itself.
    has_turn = _turns.acquire(timeout=5.0)
    try:
        yield
    finally:
        if has_turn:
            _turns.release()


def by_majority(documents: Collection[Any]) -> dict[str, Any]:
    """Return the option by which an index is made though a minority of MongoDB's nodes is away.

    Without it MongoDB waits for every node that votes, where the collection has documents.
    """
    kind = documents.database.client.topology_description.topology_type_name
    return {"commitQuorum": "majority"} if kind in _OF_SEVERAL else {}
