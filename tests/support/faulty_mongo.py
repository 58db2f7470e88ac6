"""A MongoDB whose statements fail when a test says so: not sent, applied without a reply, or late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Self

import gevent
from gevent.event import Event
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from sluicemq_broker.store.short_way import send_write
from support.virtual_time import VirtualTime

WRITES = (
    *("insert", "insert_one", "update_one", "update_many", "delete_one", "delete_many", "bulk_write"),
    *("find_one_and_update", "find_one_and_delete", "transaction"),
)
READS = ("find", "distinct", "aggregate")
#: The note of a task: without it a page more is done than it says, and its tests count pages.
_NEVER: Final = {("tasks", "find_one_and_update")}
#: Seconds after which a reply that is held is given up; a lease's statements have a client of their own.
_GIVEN_UP: Final = {"owners": 3.0}
_USUALLY_GIVEN_UP: Final = 15.0


class Kind(Enum):
    """Faults of a statement."""

    AWAY = auto()  # no primary: it was not sent, and the broker knows
    CUT = auto()  # it was not applied, and nobody can know
    LOST_REPLY = auto()  # it was applied, and nobody can know
    KILLED_BEFORE = auto()  # the broker is no more, and has not sent it
    KILLED_AFTER = auto()
    HELD = auto()  # it was applied; its reply is kept back until somebody lets it go, or it is given up
    LATE = auto()  # its sender gives it up, and it is applied when somebody lets it land
    INSIDE_BEFORE = auto()  # another broker does something right before it
    INSIDE_AFTER = auto()


#: Impossible between two statements of a transaction: a broker that acts then waits for its end.
_NOT_WITHIN: Final = (Kind.HELD, Kind.LATE, Kind.INSIDE_BEFORE, Kind.INSIDE_AFTER)


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
    ``inside`` is what another broker does in the middle of this one's work.

    The test's own greenlet can't wait for what only it will do: for it, a reply that is held is lost,
    and a statement that would land late never lands.
    """

    def __init__(
        self,
        born: Callable[[str, list[dict[str, Any]]], None],
        time: VirtualTime | None = None,
        inside: Callable[[], None] = lambda: None,
    ) -> None:
        self.born = born
        self.inside = inside
        self.fault: Fault | None = None
        self.fired = 0
        self.dead = False
        self._time = time or VirtualTime()
        self._ours = gevent.getcurrent()
        self._held: list[_Reply] = []
        self.late: list[Callable[[], Any]] = []
        self._client: FaultyClient | None = None
        self._newborn: list[tuple[str, list[dict[str, Any]]]] | None = None  # by the transaction under way

    def call(
        self,
        method: str,
        statement: Callable[[], Any],
        collection: str = "",
        cut: Callable[[], None] = lambda: None,
    ) -> Any:
        """``cut``: what is carried out of it where it is not applied."""
        if self.dead:
            raise AutoReconnect("the broker was killed")
        if self._newborn is not None and self.fault and self.fault.kind in _NOT_WITHIN:
            return statement()
        kind = self.fault.kind if self.fault and self.fault.meets(method) else None
        self.fired += kind is not None
        if kind is None:
            return statement()
        if kind in (Kind.CUT, Kind.KILLED_BEFORE):
            cut()
        given_up = _GIVEN_UP.get(collection, _USUALLY_GIVEN_UP)
        return self._fail(kind, statement, given_up, lands=method != "transaction")

    def inserted(self, collection: str, documents: list[dict[str, Any]]) -> None:
        """Note ids that are stored, or will be with the transaction that is under way."""
        if self._newborn is None:
            self.born(collection, documents)
        else:
            self._newborn.append((collection, documents))

    def transact(self, session: Any, apply: Callable[[Any], Any], options: dict[str, Any]) -> Any:
        """A transaction fails as a statement does, at its commit. One that is late is none."""

        def cut(session: Any) -> Any:
            apply(session)
            raise _Cut

        def break_off() -> None:
            with suppress(_Cut):
                self._carry_out(session, cut, options)

        return self.call("transaction", lambda: self._carry_out(session, apply, options), cut=break_off)

    def _carry_out(self, session: Any, apply: Callable[[Any], Any], options: dict[str, Any]) -> Any:
        def begin(session: Any) -> Any:
            self._newborn = []
            return apply(session)

        try:
            answer = session.with_transaction(begin, **options)
            newborn = self._newborn or []
        finally:
            self._newborn = None
        for collection, documents in newborn:
            self.born(collection, documents)
        return answer

    def client(self, real: Any) -> FaultyClient:
        """The one client of this broker."""
        self._client = self._client or FaultyClient(real, self)
        return self._client

    def let_go(self, *, delivered: bool) -> None:
        """Let the replies that are held come to their broker, or be lost."""
        held, self._held = self._held, []
        for statement in held:
            statement.arrives = delivered
            statement.gone.set()

    def land(self) -> None:
        """Let what is late be applied; nobody hears what came of it."""
        late, self.late = self.late, []
        for statement in late:
            with suppress(PyMongoError):
                statement()

    def _fail(self, kind: Kind, statement: Callable[[], Any], given_up: float, *, lands: bool) -> Any:
        if kind is Kind.AWAY:
            raise ServerSelectionTimeoutError("no primary")
        if kind in (Kind.KILLED_BEFORE, Kind.KILLED_AFTER):
            self.dead = True
        if kind in (Kind.CUT, Kind.KILLED_BEFORE):
            raise AutoReconnect("cut before it was sent")
        if kind is Kind.LATE:
            if lands and gevent.getcurrent() is not self._ours:
                self.late.append(statement)
            raise NetworkTimeout("it was not answered")
        if kind is Kind.INSIDE_BEFORE:
            self.inside()
        try:
            answer = statement()
        finally:
            if kind in (Kind.LOST_REPLY, Kind.KILLED_AFTER):
                raise NetworkTimeout("the reply was lost")  # also where it was an error
        if kind is Kind.INSIDE_AFTER:
            self.inside()
        if kind is Kind.HELD:
            self._hold(given_up)
        return answer

    def _hold(self, given_up: float) -> None:
        reply = _Reply()
        if gevent.getcurrent() is not self._ours:
            self._held.append(reply)
            self._time.alarm(given_up, reply.gone.set)
            reply.gone.wait()
        if self.dead:
            raise AutoReconnect("the broker was killed")
        if not reply.arrives:
            raise NetworkTimeout("the reply was lost")


class _Cut(Exception):
    """A transaction was cut off before its commit."""


class _Reply:
    """One that is held; ``arrives``: it comes to its broker when it is ``gone``."""

    def __init__(self) -> None:
        self.gone = Event()
        self.arrives = False


class FaultyClient:
    """A client whose transactions may fail, and commands on its connections."""

    def __init__(self, real: Any, line: Line) -> None:
        self.real = real
        self._line = line

    def start_session(self) -> FaultySession:
        return FaultySession(self.real.start_session(), self._line)

    @contextmanager
    def _conn_for_writes(self, _session: None, _command: str) -> Iterator[FaultyConnection]:
        yield FaultyConnection(self.real, self._line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class FaultyConnection:
    """A connection of such a client, for one command."""

    _METHODS: Final = {"insert": "insert", "update": "update_many", "delete": "delete_many"}

    def __init__(self, real: Any, line: Line) -> None:
        self._client = real
        self._line = line

    def command(self, database: str, command: dict[str, Any]) -> Any:
        method = self._METHODS[next(iter(command))]
        return self._line.call(method, lambda: self._send(database, dict(command)))

    def _send(self, database: str, command: dict[str, Any]) -> Any:
        answer = send_write(self._client[database], command)
        if "insert" in command:
            rows = answer.get("writeErrors", ())
            absent = {row["index"] for row in rows} | {*answer.get("retriedStmtIds", ())}
            stored = [document for at, document in enumerate(command["documents"]) if at not in absent]
            self._line.inserted(command["insert"], stored)
        return answer


class FaultySession:
    """A session for one transaction."""

    def __init__(self, real: Any, line: Line) -> None:
        self.real = real
        self._line = line

    def with_transaction(self, apply: Callable[[Any], Any], **options: Any) -> Any:
        return self._line.transact(self.real, apply, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.real.end_session()


class FaultyDatabase:
    """A database as the stores use one, over a line that may fail."""

    def __init__(self, real: Any, line: Line) -> None:
        self.real = real
        self._line = line

    @property
    def client(self) -> FaultyClient:
        return self._line.client(self.real.client)

    @property
    def name(self) -> str:
        return str(self.real.name)

    def with_options(self, **options: Any) -> FaultyDatabase:
        return FaultyDatabase(self.real.with_options(**options), self._line)

    def command(self, command: dict[str, Any], **options: Any) -> Any:
        return self._line.call("update_many", lambda: self.real.command(command, **options))

    def list_collection_names(self, **options: Any) -> Any:
        return self.real.list_collection_names(**options)

    def watch(self, *_arguments: Any, **_options: Any) -> Any:
        """Answer as a stand-alone does; the real thing would hold up this thread for a second at a time."""
        raise OperationFailure("The $changeStream stage is only supported on replica sets", 40573)

    def __getitem__(self, name: str) -> FaultyCollection:
        return FaultyCollection(self.real[name], self._line)


class FaultyCollection:
    """A collection of such a database; what is neither listed as a read nor as a write never fails."""

    def __init__(self, real: Any, line: Line) -> None:
        self.real = real
        self._line = line

    def __getattr__(self, method: str) -> Any:
        real = getattr(self.real, method)
        name = self.real.name
        if method not in (*WRITES, *READS) or (name, method) in _NEVER:
            return real
        return lambda *arguments, **options: self._line.call(
            method, lambda: real(*arguments, **options), name
        )

    @property
    def database(self) -> FaultyDatabase:
        return FaultyDatabase(self.real.database, self._line)

    def insert_many(self, documents: list[dict[str, Any]], **options: Any) -> Any:
        documents = list(documents)
        answer = self._line.call("insert", lambda: self.real.insert_many(documents, **options))
        self._line.inserted(self.real.name, documents)
        return answer

    def with_options(self, **options: Any) -> FaultyCollection:
        return FaultyCollection(self.real.with_options(**options), self._line)
