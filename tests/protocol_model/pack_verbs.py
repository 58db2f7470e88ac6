"""The store's verbs about one pack of jobs, stopped at each statement, and MongoDB that carries one out.

A verb runs in a greenlet of its own, over a collection that hands each statement to whoever runs it, and goes
on with the reply. So it can't be copied, but begun again and given the replies that it had: what it does next
depends on them alone, and on what its broker's memory was whenever it went on (:class:`Seen`).

Each statement is carried out by a real MongoDB, once for all moments in which the documents are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Self

import bson
from greenlet import getcurrent, greenlet
from pymongo import DeleteOne, ReplaceOne
from pymongo.errors import NetworkTimeout, PyMongoError

from sluicemq.protocol.errors import NotFoundError, SluiceError, UnavailableError
from sluicemq_broker.job import Job, Pack, Reservation
from sluicemq_broker.store import Progressed, QueueDefaults, QueueStore, RolledBack
from sluicemq_broker.store.values import Jobs
from support.jobs import NOW, ChangesAtOnce

QUEUE: Final = "mail"
COUNT: Final = 3
IDS: Final = tuple(f"{0:012x}{1:010x}{n:08x}" for n in range(1, COUNT + 1))
PACK: Final = f"pack/{1:010x}/{1:012x}"
ALL: Final = (1 << COUNT) - 1
_FIRST: Final = 1
_DEFAULTS: Final = QueueDefaults(packs=True)


class Verb(NamedTuple):
    """A verb of a broker, about jobs (bits) under a reservation; of a document (``about``), or an owner."""

    name: str
    owner: str = ""
    hold: int = 0
    jobs: int = 0
    about: str = ""


class Memory(NamedTuple):
    """What a broker knows of the pack under one reservation: the jobs that are out of it, and those alone."""

    done: int = 0
    alone: int = 0


#: What a verb went on with: the memory at that time, and the number of the reply. The first has none.
Seen = tuple[tuple[Memory, int], ...]


class Next(NamedTuple):
    """What a verb does next: it sends a statement, or it ends with a value, or an error."""

    memory: Memory
    statement: Statement | None = None
    value: Any = None
    error: SluiceError | None = None


class Statement(NamedTuple):
    """What a verb asks of MongoDB."""

    text: str
    apply: Callable[[Jobs], Any]
    reads: bool


class Counts(NamedTuple):
    """How many documents a statement changed."""

    deleted_count: int
    modified_count: int
    matched_count: int


class PackVerbs:
    """The verbs of the store, and the replies to them; ``jobs``: a collection with its indexes."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._line: Any = _Database()
        self._next: dict[tuple[Verb, Seen], Next] = {}
        self._replies: list[Any] = [None, NetworkTimeout("no answer")]
        self._numbers: dict[str, int] = {}
        self._applied: dict[object, tuple[tuple[bytes, ...], int]] = {}
        self._there: dict[str, bytes] = {}
        self._jobs.delete_many({})

    #: The number of the reply that never comes.
    LOST: Final = 1

    @property
    def statements(self) -> int:
        """How many MongoDB has carried out."""
        return len(self._applied)

    def next(self, verb: Verb, seen: Seen) -> Next:
        """Return what a verb does after all that it has seen."""
        found = self._next.get((verb, seen))
        if found is None:
            found = self._next[verb, seen] = self._run(verb, seen)
        return found

    def apply(self, stored: tuple[bytes, ...], verb: Verb, seen: Seen) -> tuple[tuple[bytes, ...], int]:
        """Carry out the statement of a verb; return what is stored then, and the number of the reply."""
        statement = self.next(verb, seen).statement
        assert statement
        key = (stored, statement.text or (verb, seen))
        if key not in self._applied:
            if not statement.text:  # a transaction: it is carried out by the verb itself, once
                statement = self._run(verb, seen).statement
                assert statement
            self._store(stored)
            try:
                reply = _plain(statement.apply(self._jobs))
            except PyMongoError as error:
                reply = error
            self._there = {document["_id"]: bson.encode(document) for document in self._jobs.find()}
            self._applied[key] = tuple(sorted(self._there.values())), self._number(reply)
        return self._applied[key]

    def _store(self, stored: tuple[bytes, ...]) -> None:
        wanted = {document["_id"]: document for document in map(bson.decode, stored)}
        writes: list[Any] = [DeleteOne({"_id": job_id}) for job_id in self._there.keys() - wanted.keys()]
        writes += [
            ReplaceOne({"_id": job_id}, document, upsert=True)
            for job_id, document in wanted.items()
            if self._there.get(job_id) not in stored
        ]
        if writes:
            self._jobs.bulk_write(writes)

    def _number(self, reply: Any) -> int:
        number = self._numbers.setdefault(repr(reply), len(self._replies))
        if number == len(self._replies):
            self._replies.append(reply)
        return number

    def _run(self, verb: Verb, seen: Seen) -> Next:
        pack = Pack(PACK, _FIRST, COUNT)
        jobs = [_job(at, pack, verb) for at in range(COUNT)]
        running = greenlet(partial(_VERBS[verb.name], _store(self._line), verb, jobs))
        value: Any = None
        for memory, number in seen:
            pack.done = memory.done
            for at, job in enumerate(jobs):
                job.pack_into(None if memory.alone >> at & 1 else pack)
            reply = self._replies[number]
            try:
                if isinstance(reply, Exception):
                    value = running.throw(reply)
                else:
                    value = running.switch(reply) if number else running.switch()
            except SluiceError as error:
                return Next(_memory(pack, jobs), error=error)
        if running.dead:
            return Next(_memory(pack, jobs), value=value)
        running.throw()  # its turn comes again in another one
        return Next(_memory(pack, jobs), statement=value)


def _job(at: int, pack: Pack, verb: Verb) -> Job:
    job = Job(IDS[at], b"%d" % at)
    job.accept(_FIRST + at, NOW)
    job.pack_into(pack)
    if verb.owner:
        job.reserve(Reservation(verb.owner, verb.hold))
    return job


def _memory(pack: Pack, jobs: list[Job]) -> Memory:
    return Memory(pack.done, sum(1 << at for at, job in enumerate(jobs) if job.pack is None))


def _store(line: Any) -> QueueStore:
    store = QueueStore(line, f"queue.{QUEUE}", _DEFAULTS)
    store.claims.reply_sizes.measured(1)
    store._insert = _Insert  # type: ignore[assignment, method-assign]  # noqa: SLF001 - MongoDB is the model's
    return store


def _plain(reply: Any) -> Any:
    """A reply without what differs from one time to the next."""
    if hasattr(reply, "acknowledged"):
        return Counts(*(getattr(reply, name, 0) for name in Counts._fields))
    return reply


# ---------------------------------------------------------------------- verbs


def _of(verb: Verb, jobs: list[Job]) -> list[Job]:
    return [job for at, job in enumerate(jobs) if verb.jobs >> at & 1]


def _push(store: QueueStore, verb: Verb, jobs: list[Job]) -> None:
    assert store.push(jobs, NOW).existing == []


def _claim(store: QueueStore, verb: Verb, jobs: list[Job]) -> tuple[tuple[int, int], ...]:
    """As a queue does: after an error it takes what lies under the claim's number."""
    try:
        claimed = store.reserve(100, NOW, verb.owner, verb.hold).jobs
    except UnavailableError:
        while True:
            try:
                claimed = store.claimed(verb.owner, verb.hold)
                break
            except UnavailableError:
                continue
    return tuple((IDS.index(job.id), -1 if job.pack is None else job.pack.done) for job in claimed)


def _commit(store: QueueStore, verb: Verb, jobs: list[Job]) -> dict[int, str]:
    problems = store.commit(_of(verb, jobs))
    return {IDS.index(job_id): type(error).__name__ for job_id, error in problems.items()}


def _cancel(store: QueueStore, verb: Verb, jobs: list[Job]) -> bool:
    try:
        ChangesAtOnce(store.jobs.database).cancel(QUEUE, verb.about, NOW + 1, running=True)
    except NotFoundError:
        return False
    return True


_VERBS: Final[dict[str, Callable[[QueueStore, Verb, list[Job]], Any]]] = {
    "push": _push,
    "claim": _claim,
    "commit": _commit,
    "cancel": _cancel,
    "release": lambda store, verb, jobs: store.release(_of(verb, jobs)),
    "reject": lambda store, verb, jobs: store.roll_back(
        [RolledBack(job, "no", "worker", dead=True) for job in _of(verb, jobs)], NOW
    ),
    "roll back": lambda store, verb, jobs: store.roll_back(
        [RolledBack(job, "once more", "worker") for job in _of(verb, jobs)], NOW
    ),
    "progress": lambda store, verb, jobs: store.note_progress(
        [Progressed(job, 1, 2, "", NOW) for job in _of(verb, jobs)]
    ),
    "free": lambda store, verb, jobs: store.free(verb.about, verb.owner, verb.hold),
    "reclaim": lambda store, verb, jobs: store.reclaim(verb.about, 2, NOW),
}


# ----------------------------------------------------------------- collection


def _ask(text: str, apply: Callable[[Jobs], Any], *, reads: bool = False) -> Any:
    return getcurrent().parent.switch(Statement(text, apply, reads))


class _Insert:
    """An insert under a number, which MongoDB carries out once: the model sees to that."""

    def send(self, documents: list[dict[str, Any]]) -> Any:
        def apply(jobs: Jobs) -> dict[str, Any]:
            jobs.insert_many(documents)
            return {"n": len(documents), "ok": 1.0}

        return _ask("insert", apply)

    def end(self, *, all_stored: bool) -> None:
        assert all_stored


class _Database:
    """A database whose statements go to whoever runs the verb; its client and collection, too."""

    def __init__(self) -> None:
        self.client = self
        self.database = self
        self.name = ""

    def __getitem__(self, _name: str) -> Self:
        return self

    def with_options(self, **_options: Any) -> Self:
        return self

    def start_session(self, **_options: Any) -> _Session:
        return _Session()

    @contextmanager
    def _conn_for_writes(self, *_arguments: Any) -> Iterator[Self]:
        yield self

    def command(self, _database: str, command: dict[str, Any]) -> Any:
        def apply(jobs: Jobs) -> dict[str, Any]:
            return {"n": jobs.database.command({**command, "delete": jobs.name})["n"]}

        return _ask(repr(command), apply)

    def find(self, *arguments: Any, **options: Any) -> Any:
        session = options.get("session")
        return session.ask("find", arguments, options) if session else _Found(arguments, options)

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if session := options.get("session"):
                return session.ask(method, arguments, options)

            def apply(jobs: Jobs) -> Any:
                return getattr(jobs, method)(*arguments, **options)

            return _ask(f"{method}{arguments}{options}", apply, reads=method == "find_one")

        return call


class _Found:
    """Documents that are found when they are first asked for."""

    alive = False

    def __init__(self, arguments: Any, options: Any) -> None:
        self._steps: list[tuple[str, Any, Any]] = [("find", arguments, options)]
        self._read = False

    def sort(self, *arguments: Any) -> Self:
        self._steps.append(("sort", arguments, {}))
        return self

    def __iter__(self) -> Iterator[Any]:
        def apply(jobs: Any) -> list[Any]:
            found = jobs
            for method, arguments, options in self._steps:
                found = getattr(found, method)(*arguments, **options)
            return list(found)

        return iter(_ask(repr(self._steps), apply, reads=True))

    def to_list(self, _most: int) -> list[Any]:
        self._read, read = True, self._read
        return [] if read else list(self)


class _Session:
    """A session for one transaction, which is one statement."""

    def __init__(self) -> None:
        self.ask: Callable[[str, Any, Any], Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def with_transaction(self, apply: Callable[[Any], Any], **_options: Any) -> Any:
        def carry_out(jobs: Jobs) -> Any:
            with jobs.database.client.start_session() as real:

                def ask(method: str, arguments: Any, options: Any) -> Any:
                    return getattr(jobs, method)(*arguments, **{**options, "session": real})

                self.ask = ask
                return real.with_transaction(lambda _session: apply(self))

        return _ask("", carry_out)
