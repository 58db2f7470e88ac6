"""One restore: a backup is checked, and written into databases that are empty.

Crash at any point: each database has its mark, so no broker starts on it, and a restore begins again. Only
the last statement takes the mark of the broker's own database away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.backup.archive import ArchiveReader, documents_file, metadata_file
from sluicemq_broker.backup.reach import BackupPlace, reached
from sluicemq_broker.backup.refusal import Refusal
from sluicemq_broker.store import (
    COLLECTIONS,
    SCHEMA,
    Description,
    Documents,
    Inspector,
    QueueRecord,
    QueueRecordStore,
    RestoredDatabase,
    ScheduleStore,
    collection,
)

_META: Final = "meta"

Say = Callable[[str], None]


def restore(
    file: Path, place: BackupPlace, say: Say, confirm: Callable[[str], None], *, paused: bool = False
) -> dict[str, Any]:
    """Write a backup into a MongoDB.

    Returns ``{databases, documents, collections, queues, schedules, paused, seconds}``.

    ``paused``: with all queues and schedules paused, so that nothing runs when a broker starts there.
    ``confirm`` is called with what will be done before anything is written, and raises if nobody wants that.
    Raises SluiceError and OSError.
    """
    began = time.monotonic()
    with ArchiveReader(file) as reader:
        _require_known(file, reader.manifest)
        say(f"checking {file}")
        for _ in reader.check():
            pass
        with reached(place, running=False) as client:
            done = _Restore(reader, file, place, client, say, paused=paused).run(confirm)
    return {**done, "seconds": round(time.monotonic() - began, 3)}


class _Restore:
    """The databases of a backup, and those that they are written into, by the names of the backup."""

    def __init__(
        self, reader: ArchiveReader, file: Path, place: BackupPlace, client: Any, say: Say, *, paused: bool
    ) -> None:
        self._reader = reader
        self._file = file
        self._place = place
        self._say = say
        own = reader.manifest["database"]
        names = {name: place.databases[0] if name == own else name for name in reader.manifest["schemas"]}
        if len(set(names.values())) < len(names):
            raise Refusal(
                f"{place.databases[0]} is another database of this backup: choose another --database"
            )
        token = token_hex(8)
        self._own = own
        self._targets = {name: RestoredDatabase(client[target], token) for name, target in names.items()}
        self._to_pause = [client[target] for target in names.values()] if paused else []
        self._documents = 0
        self._bytes = 0
        self._said = self._looked = time.monotonic()

    def run(self, confirm: Callable[[str], None]) -> dict[str, Any]:
        dead = self._require_empty()
        confirm(self._what())
        self._close(dead)
        try:
            collections = self._load()
        except SluiceError as error:
            raise Refusal(
                f"{error}; {self._names()} is half restored now: repeat sluicemq restore"
            ) from error
        return {
            "databases": [target.name for target in self._targets.values()],
            "collections": collections,
            "documents": self._documents,
            **self._what_runs(),
            "paused": bool(self._to_pause),
        }

    def _what_runs(self) -> dict[str, int]:
        """Return the numbers of queues and of schedules in the backup."""
        manifest, schedules = self._reader.manifest, [self._own, "schedules"]
        there = schedules in [list(pair) for pair in manifest["collections"]]
        return {
            "queues": sum(name.startswith(collection("")) for _, name in manifest["collections"]),
            "schedules": self._reader.files[documents_file(*schedules)].documents if there else 0,
        }

    def _names(self) -> str:
        return " and ".join(f"database {target.name!r}" for target in self._targets.values())

    def _what(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._reader.manifest["at"]))
        begun = [target.name for target in self._targets.values() if target.is_half_restored()]
        again = f", which is half restored ({', '.join(begun)}) and begins again" if begun else ""
        return f"Restore the state of {at} into {self._names()} of {self._place}{again}?"

    # ------------------------------------------------------------------ may it be written there

    def _require_empty(self) -> list[str]:
        """Raise Refusal if a database has something, or a broker; returns owners of leases that are dead."""
        at_start = {name for name, collection in COLLECTIONS.items() if collection.at_start}
        for target in self._targets.values():
            if not target.is_half_restored() and (found := target.content(at_start)):
                raise Refusal(
                    f"database {target.name!r} of {self._place} is not empty: it has {', '.join(found[:3])}"
                    f"{' and more' if len(found) > 3 else ''}. Restore into another one, or remove it first"
                )
        return [owner for target in self._targets.values() for owner in self._silent_owners(target)]

    def _silent_owners(self, target: RestoredDatabase) -> list[str]:
        brokers = target.live_brokers()
        if brokers:
            names = ", ".join(sorted(brokers.values()))
            self._say(f"looking whether these brokers live: {names}")
            if not target.wait_for_silence():
                raise Refusal(f"brokers use database {target.name!r}: {names}. Stop them first")
        return list(brokers)

    def _close(self, dead: list[str]) -> None:
        """Mark all databases; take that back if a broker has come meanwhile."""
        targets = list(self._targets.values())
        for target in targets:
            target.close(self._file.name, time.time())
        started = [name for target in targets for name in target.live_brokers(dead=dead).values()]
        if started:
            for target in targets:
                target.open_again()
            raise Refusal(f"a broker has started on {self._names()}: {', '.join(started)}. Stop it first")
        for target in targets:
            target.clear()

    # ------------------------------------------------------------------ writing

    def _load(self) -> int:
        collections = [(source, name) for source, name in self._reader.manifest["collections"]]
        found = [self._described(source, name) for source, name in collections]
        for described in found:
            if described.name != _META:
                self._fill(described)
        for described in found:
            if described.name != _META:
                self._say_sometimes(f"making the indexes of {described.name}")
                self._make_indexes(described)
        for database in self._to_pause:
            _pause(database)
        for source in sorted(self._targets, key=lambda name: name == self._own):  # the own one at the end
            documents = list(self._reader.documents(documents_file(source, _META)))
            if not self._targets[source].open(documents):
                raise Refusal("another restore has begun")
        return len(found)

    def _make_indexes(self, collection: Description) -> None:
        """Make the indexes of a collection; where an election has broken that off, once more."""
        # Tries to make the indexes of a collection.
        for left in reversed(range(5)):
            try:
                self._targets[collection.database].make_indexes(collection)
                break
            except UnavailableError:
                if not left:
                    raise

    def _described(self, source: str, name: str) -> Description:
        try:
            return Description.read(source, self._reader.text(metadata_file(source, name)))
        except (ValueError, KeyError, TypeError) as error:
            raise Refusal(f"{self._file} is damaged: {metadata_file(source, name)} can't be read") from error

    def _fill(self, collection: Description) -> None:
        """Insert all documents of a collection; its indexes follow, as one of them removes old documents."""
        target = self._targets[collection.database]
        target.create(collection)
        for documents in self._batches(collection):
            target.insert(collection.name, documents)
            self._documents += len(documents)
            self._bytes += sum(map(len, documents))
            self._say_sometimes(
                f"{collection.name}: {self._documents} documents, {self._bytes // 1_000_000} MB in all so far"
            )
            self._require_last_restore(target)
        wanted = self._reader.files[documents_file(collection.database, collection.name)].documents
        if (count := target.count(collection.name)) != wanted:
            raise Refusal(
                f"{collection.name} has {count} documents, and the backup has {wanted}: somebody else writes"
            )

    def _batches(self, collection: Description) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        for document in self._reader.documents(documents_file(collection.database, collection.name)):
            # Documents, and bytes, of one insert
            if batch and (len(batch) >= 2000 or size + len(document) > 8 << 20):
                yield batch
                batch, size = [], 0
            batch.append(document)
            size += len(document)
        if batch:
            yield batch

    def _require_last_restore(self, target: RestoredDatabase) -> None:
        # Seconds between two looks whether another restore has begun
        if time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            if not target.is_mine():
                raise Refusal("another restore has begun")

    def _say_sometimes(self, text: str) -> None:
        # Seconds between two lines of progress
        if time.monotonic() - self._said > 5.0:
            self._said = time.monotonic()
            self._say(text)


def _pause(database: Documents) -> None:
    """Pause delivery of all queues, and all schedules, of a restored database; may be repeated."""
    records = QueueRecordStore(database)
    records.prepare()
    for name in Inspector(database).names():
        records.change(name, _without_delivery, time.time())
    ScheduleStore(database).pause_all()


def _without_delivery(record: QueueRecord) -> QueueRecord:
    return replace(record, paused=record.paused | {wire.DELIVERY})


def _require_known(file: Path, manifest: dict[str, Any]) -> None:
    newest = max(manifest["schemas"].values())
    if newest > SCHEMA:
        raise Refusal(
            f"{file} was made by SluiceMQ {manifest['sluicemq']}, and has schema {newest}; this one reads "
            f"{SCHEMA} at most: install that version here, too"
        )
