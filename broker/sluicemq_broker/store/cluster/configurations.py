"""Settings of queues that each broker has from its file, so that brokers see where they differ.

A lease names the settings of its broker by their digest. What they are is stored once for all brokers that
have them::

    owners:         {_id: owner, ..., settings?: digest}
    configurations: {_id: digest, queues: [JSON, ...] | null, used_at}

Each JSON has the tables of a few hundred queues, as one of ten thousand would take longer to read than a turn
of the hub may. Brokers say so again every ten minutes. Settings that nobody has used for a day go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import IndexModel

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import NUMBER, TEXT, TEXTS, Unreadable, field, readable
from sluicemq_broker.store.values import DAY, Document, date
from sluicemq_devices.hub import let_others_run

#: Settings by their keys, by queue; ``*``: of queues without a table.
Tables = Mapping[str, Mapping[str, Any]]


class Said(NamedTuple):
    """A live broker: its name, its version, the seconds of its lease, and the digest of its settings."""

    broker: str
    version: str
    lease: float
    digest: str


class ConfigurationStore:
    """The settings of all brokers on one database; repeating any of these is harmless."""

    def __init__(self, database: Documents) -> None:
        self._leases = durable(database)["owners"]
        self._configurations = durable(database)["configurations"]

    def prepare(self) -> None:
        """Make the index that removes what nobody uses."""
        with translated():
            # failpoint configurations.prepare
            self._configurations.create_indexes(
                [IndexModel([("used_at", 1)], expireAfterSeconds=DAY)],
                **by_majority(self._configurations),
            )

    def put(self, owners: Iterable[str], digest: str, texts: Sequence[str], now: float) -> None:
        """Store the settings of a broker with these owner ids; ``texts``: its tables as JSON, in pieces."""
        fits = sum(map(len, texts)) <= 2 * 2**20  # of a larger file only the digest is known
        used = {"queues": list(texts) if fits else None, "used_at": date(now)}
        with translated():
            # failpoint configurations.store
            self._configurations.update_one({"_id": digest}, {"$set": used}, upsert=True)
            # failpoint configurations.note_owners
            self._leases.update_many({"_id": {"$in": list(owners)}}, {"$set": {"settings": digest}})

    def live(self) -> list[Said]:
        """Return all live brokers, by name; of several leases of one the latest."""
        with translated():
            found = self._leases.find({"state": "live"}).sort("started_at", 1)
            said = {row.broker: row for row in readable(self._leases, found, _said)}
        return [said[name] for name in sorted(said)]

    def read(self, digests: Iterable[str]) -> dict[str, Tables]:
        """Return the settings of these digests, as far as they are there and can be read."""
        found = self._configurations.find({"_id": {"$in": list(digests)}}).batch_size(1)
        pairs = readable(self._configurations, found, lambda stored: (stored["_id"], read_tables(stored)))
        with translated():
            return {digest: tables for digest, tables in pairs if tables is not None}


def _said(stored: Document) -> Said:
    name, version = field(stored, "name", TEXT), field(stored, "version", TEXT, "")
    return Said(name, version, field(stored, "lease", NUMBER), field(stored, "settings", TEXT, ""))


def read_tables(stored: Document) -> Tables | None:
    """Read the settings that brokers have; None: they are too many to be stored."""
    texts = field(stored, "queues", TEXTS, None)
    found = None if texts is None else _tables(texts)
    if texts is not None and found is None:
        raise Unreadable("its queues are no tables in JSON")
    return found


def _tables(texts: Any) -> Tables | None:
    tables: dict[str, Mapping[str, Any]] = {}
    try:
        for text in texts:
            tables |= json.loads(text)
            let_others_run()
    except (TypeError, ValueError, RecursionError):
        return None
    return tables if all(isinstance(table, dict) for table in tables.values()) else None
