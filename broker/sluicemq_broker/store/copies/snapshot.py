"""Databases as they are at one moment, read collection by collection while brokers work.

All reads belong to one session, which MongoDB answers as of the moment of its first read. Lists of
collections are not part of such a session, and a collection that is gone reads as empty. So:

* Collections are listed before the first read, and again behind it.
* One that can't be read, as it is newer than that moment, was not there then. It is left out if the first
  list lacks it, too; else the copy begins again.
* One that was removed while it was read is left out: its queue was deleted meanwhile.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import errors as mongo_errors
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.availability import NOT_LINEARIZABLE
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.copies.descriptions import Description
from sluicemq_broker.store.copies.history_window import Disturbed, HistoryWindow
from sluicemq_broker.store.errors import ServerCode, brief, translated

#: Collections that say how things are now, and mean nothing later: leases of brokers, the ring of the event
#: bus, what the files of these brokers say, and the secrets that sign logins, with which a reader of a backup
#: could sign. Jobs whose owner has no lease are given back.
OF_THE_MOMENT: Final = frozenset({"owners", "bus", "configurations", "figures", "logins"})


class LeftOut(Exception):
    """Raised for a collection that was not there at that moment, or is gone now."""


class BackupSnapshot:
    """All collections of some databases, at the moment of the first read."""

    def __init__(self, client: Client, databases: Sequence[str], window: HistoryWindow) -> None:
        self._client = client
        self._databases = databases
        self._window = window
        self._session: ClientSession | None = None
        self._before: set[str] = set()

    @contextmanager
    def taken(self) -> Iterator[Sequence[Description]]:
        """Fix the moment; yields the collections."""
        with _judged(self._window):
            self._before = {collection.uuid for collection in self._listed()}
            with self._client.start_session(snapshot=True) as self._session:
                self._window.begin()
                self._client[self._databases[0]]["meta"].find_one({}, session=self._session)
                found = [self._described(collection) for collection in self._listed()]
                yield found

    def batches(self, collection: Description) -> Iterator[bytes]:
        """Yield the documents of a collection, many at once, one behind the other; raises LeftOut."""
        documents = self._client[collection.database].get_collection(
            collection.name, CodecOptions(RawBSONDocument), read_concern=ReadConcern()
        )
        with _judged(self._window):
            try:
                found: Any = documents.find_raw_batches({}, session=self._session)  # of bytes
                for batch in found:
                    self._window.hold()
                    yield batch
            except mongo_errors.OperationFailure as error:
                if error.code == ServerCode.SNAPSHOT_UNAVAILABLE and collection.uuid not in self._before:
                    raise LeftOut from error
                raise
            except mongo_errors.ServerSelectionTimeoutError as error:
                raise Disturbed(brief(error)) from error  # the server of the cursor is gone
            if not self._is_there(collection):
                raise LeftOut

    def _listed(self) -> list[Description]:
        return [
            Description.listed(name, entry)
            for name in self._databases
            for entry in sorted(
                self._client[name].list_collections(filter={"type": "collection"}), key=itemgetter("name")
            )
            if entry["name"] not in OF_THE_MOMENT and not entry["name"].startswith("system.")
        ]

    def _described(self, collection: Description) -> Description:
        found = tuple(
            dict(index) for index in self._client[collection.database][collection.name].list_indexes()
        )
        return collection._replace(indexes=found)

    def _is_there(self, collection: Description) -> bool:
        """Return True if this collection is still there, and not another one of its name."""
        found = self._client[collection.database].list_collections(filter={"name": collection.name})
        return any(Description.listed(collection.database, entry).uuid == collection.uuid for entry in found)


@contextmanager
def _judged(window: HistoryWindow) -> Iterator[None]:
    """Say of an error whether the copy may begin again, takes too long, or is not possible."""
    with translated():
        try:
            yield
        except mongo_errors.OperationFailure as error:
            if error.code == ServerCode.SNAPSHOT_TOO_OLD:
                raise window.over() from error
            if error.code in NOT_LINEARIZABLE:
                raise UnavailableError(
                    f"this MongoDB can't be read as of one moment ({brief(error)}): that needs a replica set "
                    "of MongoDB 5.0 or newer"
                ) from error
            if error.code == ServerCode.SNAPSHOT_UNAVAILABLE or isinstance(
                error, mongo_errors.CursorNotFound
            ):
                raise Disturbed(brief(error)) from error
            raise
        except (mongo_errors.AutoReconnect, mongo_errors.NotPrimaryError) as error:
            if isinstance(error, mongo_errors.ServerSelectionTimeoutError):
                raise
            raise Disturbed(brief(error)) from error
