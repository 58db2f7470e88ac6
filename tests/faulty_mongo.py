"""A MongoDB whose statements fail when told to: before they are sent, or when they have been applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pymongo.errors import AutoReconnect, BulkWriteError, NetworkTimeout, ServerSelectionTimeoutError

WRITES = ("insert_many", "update_one", "update_many", "delete_one", "delete_many", "bulk_write")
READS = ("find", "distinct")


class Kind(Enum):
    """What happens at a statement."""

    AWAY = auto()  # no primary: it was not sent, and the broker knows
    CUT = auto()  # it was not applied, and nobody can know
    LOST_REPLY = auto()  # it was applied, and nobody can know
    KILLED_BEFORE = auto()  # the broker is no more, and has not sent it
    KILLED_AFTER = auto()


@dataclass
class Fault:
    """The fault of the statement after ``skip`` others, and of the next ones up to ``times`` in all.

    Only statements of this ``method`` count; empty: every statement.
    """

    kind: Kind
    method: str = ""
    skip: int = 0
    times: int = 1

    def meets(self, method: str) -> bool:
        if self.times == 0 or self.method not in ("", method):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Line:
    """The way of one broker to MongoDB; ``fired`` counts its faults, ``dead``: the broker was killed.

    ``born`` is told which documents an insert did store, whether the broker learns of it or not.
    """

    def __init__(self, born: Callable[[list[dict[str, Any]]], None]) -> None:
        self.born = born
        self.fault: Fault | None = None
        self.fired = 0
        self.lost_inserts = 0
        self.dead = False

    def call(self, method: str, statement: Callable[[], Any]) -> Any:
        if self.dead:
            raise AutoReconnect("the broker was killed")
        kind = self.fault.kind if self.fault and self.fault.meets(method) else None
        self.fired += kind is not None
        if kind is Kind.AWAY:
            raise ServerSelectionTimeoutError("no primary")
        if kind in (Kind.KILLED_BEFORE, Kind.KILLED_AFTER):
            self.dead = True
        if kind in (Kind.CUT, Kind.KILLED_BEFORE):
            raise AutoReconnect("cut before it was sent")
        try:
            return statement()
        finally:
            if kind:
                self.lost_inserts += method == "insert_many"
                raise NetworkTimeout("the reply was lost")  # also where it was an error


class FaultyDatabase:
    """A database as the stores use one, over a line that may fail."""

    def __init__(self, real: Any, line: Line) -> None:
        self._real = real
        self._line = line

    def with_options(self, **options: Any) -> FaultyDatabase:
        return FaultyDatabase(self._real.with_options(**options), self._line)

    def __getitem__(self, name: str) -> FaultyCollection:
        return FaultyCollection(self._real[name], self._line)


class FaultyCollection:
    """A collection of such a database; what is neither listed as a read nor as a write never fails."""

    def __init__(self, real: Any, line: Line) -> None:
        self._real = real
        self._line = line

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._real, method)
        if method not in (*WRITES, *READS):
            return real
        return lambda *arguments, **options: self._line.call(method, lambda: real(*arguments, **options))

    def with_options(self, **options: Any) -> FaultyCollection:
        return FaultyCollection(self._real.with_options(**options), self._line)

    def insert_many(self, documents: Sequence[dict[str, Any]], **options: Any) -> Any:
        return self._line.call("insert_many", lambda: self._insert(documents, options))

    def _insert(self, documents: Sequence[dict[str, Any]], options: dict[str, Any]) -> Any:
        try:
            answer = self._real.insert_many(documents, **options)
        except BulkWriteError as error:
            refused = {each["index"] for each in error.details["writeErrors"]}
            self._line.born([each for at, each in enumerate(documents) if at not in refused])
            raise
        self._line.born(list(documents))
        return answer
