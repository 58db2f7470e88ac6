"""Descriptions of collections in the form of mongodump: ``NAME.metadata.json`` beside ``NAME.bson``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from bson import json_util

from sluicemq_broker.store.values import Document


class Description(NamedTuple):
    """A collection: its options, and the specifications of its indexes.

    ``uuid``: as hexadecimal digits; another collection of this name has another one.
    """

    database: str
    name: str
    uuid: str
    options: Document
    indexes: tuple[Document, ...] = ()

    @classmethod
    def listed(cls, database: str, entry: Mapping[str, Any]) -> Self:
        """Read an entry of ``listCollections``."""
        uuid = entry["info"].get("uuid")
        return cls(database, entry["name"], "" if uuid is None else bytes(uuid).hex(), entry["options"])

    @classmethod
    def read(cls, database: str, text: bytes) -> Self:
        """Read a file of metadata; raises ValueError, KeyError or TypeError for one that is none."""
        found: dict[str, Any] = json_util.loads(text.decode())
        indexes = tuple(dict(index) for index in found["indexes"])
        return cls(database, found["collectionName"], found["uuid"], dict(found["options"]), indexes)

    def text(self) -> bytes:
        """Return the file of metadata."""
        content = {
            "indexes": self.indexes,
            "uuid": self.uuid,
            "collectionName": self.name,
            "type": "collection",
            "options": self.options,
        }
        return json_util.dumps(content, json_options=json_util.CANONICAL_JSON_OPTIONS).encode()

    @property
    def made_indexes(self) -> list[Document]:
        """The indexes that must be made: a collection has that of its ids by itself."""
        return [index for index in self.indexes if index["name"] != "_id_"]
