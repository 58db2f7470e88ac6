"""Beginning of retention by default in a database: ``meta: {_id: "retention", since}``.

Older versions kept dead letters until somebody purged them, and messages of a stream until each subscription
had read them. So dead letters that are there when the first broker of this version begins count as if they
had died at that moment, and subscriptions as if they had been used then.
"""

from __future__ import annotations

from typing import Final

from pymongo import ReturnDocument

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import DATE, field, readable
from sluicemq_broker.store.values import Document, date

_KEY: Final = {"_id": "retention"}


class RetentionStore:
    """The beginning of retention in one database."""

    def __init__(self, database: Documents) -> None:
        self._meta = durable(database)["meta"]

    def read(self) -> float | None:
        """Return since when there is a retention; None: no broker of this version has begun."""
        with translated():
            found = self._meta.find_one(_KEY)
        return next(readable(self._meta, [found] if found else [], read_since), None)

    def begin(self, now: float) -> float:
        """Return since when there is a retention: from now on, if no broker has said so before.

        Repeating it is harmless. A time that somebody has damaged counts as none.
        """
        is_date = {"$eq": [{"$type": "$since"}, "date"]}
        begins = [{"$set": {"since": {"$cond": [is_date, "$since", date(now)]}}}]
        with translated():
            # failpoint retention.begin
            found: Document | None = self._meta.find_one_and_update(
                _KEY,
                begins,
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return next(readable(self._meta, [found] if found else [], read_since), now)


def read_since(stored: Document) -> float:
    """Read since when there is a retention."""
    since: float = field(stored, "since", DATE)
    return since
