"""Documents that all brokers follow: each change of one has the next revision of its collection.

::

    {_id: name, revision, changed_at, removed_at?, ...}
    {_id: "", last}

Each change raises ``last`` and takes it as its ``revision``, in one majority transaction. So revisions become
visible in their order, and brokers find all changes since the last revision that they have read. A document
with ``removed_at`` stays for a day after that, so that they find its removal, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import DifferentStoreError
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.transactions import transact
from sluicemq_broker.store.set_aside import ASIDE, COUNT, Damaged, field, read_or_damaged
from sluicemq_broker.store.values import DAY, Document, Jobs

#: The name of the document with the last revision, which no other has.
LAST: Final = ""


class Revised(Protocol):
    """A document as it was read; ``revision``: of its last change."""

    @property
    def revision(self) -> int:
        """Return the revision of its last change."""


Result = TypeVar("Result")
Read = TypeVar("Read", bound=Revised)
Read_co = TypeVar("Read_co", bound=Revised, covariant=True)


class Readable(Protocol[Read_co]):
    """A store of such documents."""

    def read(self, after: int | None = None) -> Iterator[Read_co]:
        """Yield the documents that were changed after a revision, in that order; None: all."""


#: Stores the fields of a document under the next revision, which it returns.
Put = Callable[[Document], int]


class Revisions:
    """One collection of such documents."""

    def __init__(self, documents: Jobs) -> None:
        self._client = documents.database.client
        self._changing = Lock()  # of greenlets, as all that starts a broker patches it
        self.documents = documents

    def prepare(self, *indexes: IndexModel) -> None:
        """Make the indexes, and the document with the last revision; repeating it is harmless."""
        with translated():
            # failpoint revisions.index
            self.documents.create_indexes(
                [
                    IndexModel([("revision", 1)], name="changes"),
                    IndexModel([("removed_at", 1)], name="removed", expireAfterSeconds=DAY),
                    *indexes,
                ],
                **by_majority(self.documents),
            )
            # failpoint revisions.prepare
            self.documents.update_one({"_id": LAST}, {"$setOnInsert": {"last": 0}}, upsert=True)

    def newer(self, after: int | None = None) -> Iterator[Document]:
        """Yield the documents that were changed or removed after a revision, in that order; None: all.

        Reads by the index of revisions, what a majority has: no change of primary takes a revision back.
        """
        documents = self.documents.with_options(read_concern=ReadConcern("majority"))
        newer = {} if after is None else {"revision": {"$gt": after}}
        with translated():
            # Documents in one reply: a few milliseconds of the hub.
            for document in documents.find(newer).sort("revision", 1).batch_size(200):
                if document["_id"] != LAST:
                    yield document

    def find(self, name: str, session: ClientSession | None = None) -> Document | None:
        """Return a document as it is stored; raises the driver's errors."""
        return self.documents.find_one({"_id": name}, session=session) if name != LAST else None

    def change(
        self, name: str, change: Callable[[Document | None, Put, ClientSession | None], Result]
    ) -> Result:
        """Return what ``change`` returns, which is called in a transaction with the stored document.

        It may store another one, once; after a conflict it is called again. Crash before: nothing is changed.
        After: it is, and brokers find it by its revision. Reply lost: the driver asks again under the
        transaction's number; if that is not answered either, the document shows what holds. A stand-alone
        MongoDB has no transactions: of changes by two brokers at once one may be lost there, or found an
        hour later.
        """

        def apply(session: ClientSession | None) -> Result:
            return change(self.find(name, session), lambda fields: self._put(name, fields, session), session)

        changes = self.documents.name
        # Seconds for which a change waits for others of this broker, which it would be in conflict with.
        has_turn = self._changing.acquire(timeout=5.0)
        try:
            # failpoint revisions
            return transact(self._client, lambda: [name], lambda _names, session: apply(session), changes)
        except DifferentStoreError:
            with translated():
                return apply(None)
        finally:
            if has_turn:
                self._changing.release()

    def _put(self, name: str, fields: Document, session: ClientSession | None) -> int:
        revision = self._last(session) + 1
        # failpoint revisions.count
        self.documents.update_one({"_id": LAST}, {"$set": {"last": revision}}, upsert=True, session=session)
        document = {**fields, "revision": revision}
        # failpoint revisions.put
        self.documents.replace_one({"_id": name}, document, upsert=True, session=session)
        return revision

    def _last(self, session: ClientSession | None) -> int:
        """Return the last revision; where somebody has damaged that, the highest of all documents."""
        stored = self.documents.find_one({"_id": LAST}, session=session) or {"_id": LAST}
        last = read_or_damaged(self.documents, stored, read_last)
        if not isinstance(last, Damaged):
            return last
        ASIDE.note(last)
        is_number = {"revision": {"$type": "number"}}
        newest = self.documents.find_one(is_number, sort=[("revision", -1)], session=session) or {}
        return int(newest.get("revision", 0))


def read_last(stored: Document) -> int:
    """Read the last revision."""
    last: int = field(stored, "last", COUNT)
    return last


class Follower(Generic[Read]):
    """Reads what has changed in a store since the last read. ``now``: monotonic seconds."""

    def __init__(self, store: Readable[Read], now: Callable[[], float]) -> None:
        self.revision: int | None = None
        """The last revision that was read; None: nothing was."""
        self._store = store
        self._now = now
        self._read_at = 0.0

    def read(self) -> tuple[list[Read], bool]:
        """Return documents in the order of their changes, and if they are all that there are.

        They are at the first read, and where removals may have been forgotten since the last one. After an
        error the next call reads again what this one would have.
        """
        now = self._now()
        # After an hour: long before removals are forgotten
        complete = self.revision is None or now - self._read_at > DAY / 24
        found = list(self._store.read(None if complete else self.revision))
        before = 0 if complete else self.revision or 0  # the collection may be another one since
        self.revision = max([before, *(record.revision for record in found)])
        self._read_at = now
        return found, complete
