"""What MongoDB tells of new segments, of all streams of a database: a change stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo.change_stream import DatabaseChangeStream
from pymongo.errors import OperationFailure

from sluicemq.errors import Unavailable
from sluicemq_broker.store.connection import Documents, brief, in_trouble, translated

#: Milliseconds after which MongoDB answers that nothing has changed.
_AWAIT: Final = 1000
#: Told at once, at most; the next call has the rest.
_MOST: Final = 1000

_PREFIX: Final = "stream."


class StreamChanges:
    """Opens change streams. ``supported``: False once the server has said that it has none."""

    def __init__(self, database: Documents) -> None:
        self.supported = True
        self._database = database

    @contextmanager
    def open(self) -> Iterator[Changed]:
        """New segments from now on; raises Unavailable where there is no such thing, or no MongoDB."""
        inserts = {"operationType": "insert", "ns.coll": {"$regex": "^stream\\."}}
        wanted: list[dict[str, Any]] = [
            {"$match": inserts},
            {"$project": {"ns.coll": 1, "documentKey": 1}},
        ]
        with translated():
            try:
                changes = self._database.watch(wanted, max_await_time_ms=_AWAIT)
            except OperationFailure as error:
                self.supported = in_trouble(error)
                raise Unavailable(f"MongoDB tells no changes: {brief(error)}") from error
            with changes:
                yield Changed(changes)


class Changed:
    """A change stream that is open."""

    def __init__(self, changes: DatabaseChangeStream[dict[str, Any]]) -> None:
        self._changes = changes

    def next(self) -> list[tuple[str, int]]:
        """Streams and first numbers of new segments; waits up to a second for some."""
        found: list[tuple[str, int]] = []
        with translated():
            change = self._changes.try_next()
            while change is not None:
                number = change["documentKey"]["_id"]
                if isinstance(number, int):
                    found.append((change["ns"]["coll"].removeprefix(_PREFIX), number))
                # What is at hand already is told together, without asking again.
                change = self._changes.try_next() if self._at_hand() and len(found) < _MOST else None
        return found

    def _at_hand(self) -> bool:
        cursor: Any = self._changes._cursor  # noqa: SLF001 - there is no other way to see it
        return bool(getattr(cursor, "_data", ()))
