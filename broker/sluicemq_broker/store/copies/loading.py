"""Writing a copy into databases of their own, which brokers must not use until all of it is there.

The mark of :class:`SchemaStore` is written first, and leases are read behind it: a broker has its lease
before it reads the mark. So either it is refused, or it is seen. Repeating a restore that was killed begins
again.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from typing import Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from sluicemq_broker.store.cluster.leases import LeaseStore
from sluicemq_broker.store.cluster.schema import HalfRestored, NewerSchema, SchemaStore
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.copies.descriptions import Description
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.values import Document

_META: Final = "meta"
#: Seconds between two looks at the leases of others.
_LOOK: Final = 0.2


class RestoredDatabase:
    """One database that a copy is written into; ``token``: of this restore."""

    def __init__(self, database: Documents, token: str) -> None:
        self.name = database.name
        self._database = durable(database)
        self._schema = SchemaStore(database)
        self._leases = LeaseStore(database)
        self._token = token
        self._before: Document | None = None

    def is_half_restored(self) -> bool:
        """Return True if a restore into it has begun, and not ended."""
        try:
            self._schema.read()
        except HalfRestored:
            return True
        except NewerSchema:
            return False
        return False

    def content(self, at_start: Container[str]) -> list[str]:
        """Return the collections with something that a restore would destroy; the first ones.

        Those ``at_start``, which a broker writes when it starts on a new database, do not count, nor do empty
        queues.
        """
        return [name for name in self._collections() if name not in at_start and self._has_documents(name)]

    def live_brokers(self, *, dead: Sequence[str] = ()) -> dict[str, str]:
        """Return the names of brokers with a live lease, by owner id, but for these owners."""
        owners = set(self._leases.live()) - set(dead)
        with translated():
            found = self._database["owners"].find({"_id": {"$in": sorted(owners)}}, {"name": 1})
            return {document["_id"]: str(document.get("name", "")) for document in found}

    def wait_for_silence(self) -> bool:
        """Return True when no lease has been renewed for as long as it lasts; False as soon as one is.

        A broker that was killed leaves a lease that only other brokers end.
        """
        first = self._leases.live()
        left = max((span for _, span in first.values()), default=0.0)
        while left > 0:
            time.sleep(_LOOK)
            left -= _LOOK
            now = self._leases.live()
            if any(first.get(owner, (None,))[0] != beat for owner, (beat, _) in now.items()):
                return False
        return True

    def close(self, file: str, now: float) -> None:
        """Close the database to brokers; :meth:`open_again` takes that back until :meth:`clear`."""
        self._before = self._schema.begin_restore(self._token, file, now)

    def open_again(self) -> None:
        """Open it to brokers as it was before."""
        self._schema.end_restore(self._token, self._before)

    def clear(self) -> None:
        """Remove all but the mark."""
        with translated():
            for name in self._collections():
                if name != _META:
                    # failpoint restores.drop
                    self._database.drop_collection(name)
            # failpoint restores.clear_notes
            self._database[_META].delete_many({"_id": {"$ne": "schema"}})

    def is_mine(self) -> bool:
        """Return False if another restore into it has begun."""
        return self._schema.is_restoring(self._token)

    def create(self, collection: Description) -> None:
        """Make an empty collection with these options."""
        with translated():
            # failpoint restores.create
            self._database.create_collection(collection.name, **collection.options)

    def insert(self, name: str, documents: Sequence[bytes]) -> None:
        """Insert documents as they are."""
        raw = self._database.get_collection(name, CodecOptions(RawBSONDocument))
        with translated():
            # failpoint restores.insert
            raw.insert_many([RawBSONDocument(document) for document in documents], ordered=False)

    def count(self, name: str) -> int:
        """Return how many documents a collection has."""
        with translated():
            return self._database[name].count_documents({})

    def make_indexes(self, collection: Description) -> None:
        """Make the indexes of a collection that is full."""
        if specifications := collection.made_indexes:
            with translated():
                quorum = by_majority(self._database[collection.name])
                # failpoint restores.index
                self._database.command("createIndexes", collection.name, indexes=specifications, **quorum)

    def open(self, meta: Sequence[bytes]) -> bool:
        """Open it to brokers, with the documents of ``meta``; False: another restore has begun."""
        found = {document["_id"]: document for document in map(bson.decode, meta)}
        number = found.pop("schema")
        with translated():
            for name, note in found.items():
                # failpoint restores.put_notes
                self._database[_META].replace_one({"_id": name}, note, upsert=True)
        return self._schema.end_restore(self._token, number)

    def _collections(self) -> Iterator[str]:
        with translated():
            names: list[str] = self._database.list_collection_names()
        return (name for name in sorted(names) if not name.startswith("system."))

    def _has_documents(self, name: str) -> bool:
        with translated():
            # The id of the document that counts the changes of a collection.
            return self._database[name].find_one({"_id": {"$ne": ""}}, {"_id": 1}) is not None
