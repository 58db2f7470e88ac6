"""One backup: databases as they are at one moment, copied into a file while brokers work.

Crash at any point: the file has its name once all of it is on the disk; before, it is a ``.part``, which the
next backup removes. Old backups are removed behind that. MongoDB is only read.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluicemq_broker import __version__
from sluicemq_broker.backup.archive import ArchiveWriter, Filed, documents_file, metadata_file
from sluicemq_broker.backup.folder import BackupFolder
from sluicemq_broker.backup.reach import BackupPlace, reached
from sluicemq_broker.backup.refusal import Refusal
from sluicemq_broker.store import BackupSnapshot, Description, Disturbed, HistoryWindow, LeftOut, SchemaStore

Say = Callable[[str], None]


def back_up(place: BackupPlace, out: Path, keep: int | None, say: Say) -> dict[str, Any]:
    """Write a backup into a folder; returns ``{file, documents, bytes, seconds, removed, left_out}``.

    ``keep``: how many backups of this database stay there. Raises SluiceError and OSError.
    """
    began = time.monotonic()
    folder = BackupFolder(out, place.databases[0])
    folder.prepare()
    folder.require_room()
    with reached(place, running=True) as client:
        schemas = _schemas(client, place)
        # Copies that are begun, where an election or the like disturbs them.
        for left in reversed(range(3)):
            try:
                done = _Copy(client, place, folder, say, schemas).make()
                break
            except Disturbed as error:
                if not left:
                    raise
                say(f"the copy begins again: {error}")
    removed = folder.keep(keep, Path(done["file"])) if keep else []
    for path in removed:
        say(f"removed {path}")
    return {**done, "seconds": round(time.monotonic() - began, 3), "removed": [str(path) for path in removed]}


class _Copy:
    """One try."""

    def __init__(
        self, client: Any, place: BackupPlace, folder: BackupFolder, say: Say, schemas: Mapping[str, int]
    ) -> None:
        self._client = client
        self._place = place
        self._folder = folder
        self._say = say
        self._schemas = schemas
        self._left_out: list[str] = []
        self._done: list[Filed] = []
        self._collections: list[tuple[str, str]] = []
        self._said = time.monotonic()

    def make(self) -> dict[str, Any]:
        now = time.time()
        with self._folder.writing(now) as (file, whole):
            writer = ArchiveWriter(file, now)
            try:
                self._copy(writer)
                writer.end(self._about(now))
            finally:
                writer.close()
            size = file.tell()
        jobs = sum(collection.documents for collection in self._done)
        self._say(f"{jobs} documents in {len(self._done)} collections: {size} bytes in {whole}")
        return {"file": str(whole), "documents": jobs, "bytes": size, "left_out": self._left_out}

    def _copy(self, writer: ArchiveWriter) -> None:
        databases = list(self._schemas)
        with HistoryWindow(self._client) as window:
            snapshot = BackupSnapshot(self._client, databases, window)
            with snapshot.taken() as collections:
                for collection in collections:
                    self._add(writer, collection, snapshot.batches(collection))

    def _add(self, writer: ArchiveWriter, collection: Description, batches: Iterator[bytes]) -> None:
        done = Filed("", 0, 0, "")
        try:
            with writer.adding(documents_file(collection.database, collection.name)) as take:
                for batch in batches:
                    done = take(batch)
                    self._show(collection, done)
                    self._folder.require_room()
        except LeftOut:
            self._left_out.append(f"{collection.database}.{collection.name}")
            return
        writer.add(metadata_file(collection.database, collection.name), collection.text())
        self._done.append(done)
        self._collections.append((collection.database, collection.name))

    def _show(self, collection: Description, done: Filed) -> None:
        # Seconds between two lines of progress
        if time.monotonic() - self._said > 5.0:
            self._said = time.monotonic()
            before = sum(file.bytes for file in self._done)
            self._say(
                f"{collection.name}: {done.documents} documents; "
                f"{(before + done.bytes) // 1_000_000} MB in all so far"
            )

    def _about(self, now: float) -> dict[str, Any]:
        return {
            "sluicemq": __version__,
            "mongodb": self._client.server_info()["version"],
            "host": platform.node(),
            "at": now,
            "database": self._place.databases[0],
            "schemas": self._schemas,
            "left_out": self._left_out,
            "collections": self._collections,
        }


def _schemas(client: Any, place: BackupPlace) -> dict[str, int]:
    """Return the schema of each database that is there; raises SluiceError if the broker's own is not."""
    stores = {name: SchemaStore(client[name]) for name in place.databases}
    found = {name: store.read().number for name, store in stores.items() if store.is_there()}
    if place.databases[0] not in found:
        raise Refusal(f"no broker has ever used database {place.databases[0]!r} of {place}: nothing is there")
    return found
