"""Damaged documents of a database, for the doctor: all collections are read as brokers read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymongo.collection import Collection

from sluicemq_broker.store.admin.collections import COLLECTIONS
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import Damaged, Reader, read_or_damaged
from sluicemq_broker.store.streams.segments import HEAD, OUTLINE, head_of, segment_of
from sluicemq_broker.store.streams.stream_store import STREAM_PREFIX
from sluicemq_broker.store.values import Document


def damaged_documents(database: Documents) -> Iterator[Damaged]:
    """Yield the documents that brokers can't read; of large collections the latest are looked at."""
    with translated():
        for name in sorted(database.list_collection_names()):
            if name in COLLECTIONS and (read := COLLECTIONS[name].read):
                yield from _damaged(database[name], read, None, 10_000)
            elif name.startswith(STREAM_PREFIX):
                yield from _damaged(database[name], _in_stream, {**OUTLINE, "first": 1, "removed": 1}, 1000)


def _in_stream(stored: Document) -> object:
    return head_of(stored) if stored["_id"] == HEAD else segment_of(stored)


def _damaged(
    documents: Collection[Any], read: Reader[object], fields: Document | None, most: int
) -> Iterator[Damaged]:
    # Documents in one reply: those of the history are large.
    for document in documents.find({}, fields).sort("$natural", -1).limit(most).batch_size(100):
        found = read_or_damaged(documents, document, read)
        if isinstance(found, Damaged):
            yield found
