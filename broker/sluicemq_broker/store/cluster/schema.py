"""Schema number of a database: which brokers can read it, and what they may write.

Rule for changes: a new optional field keeps the number, and so does a partial index over it, as no older
document is in that. A field that changes its meaning, or that a broker must not ignore, or any other new
index, raises ``SCHEMA``. Brokers of the new version read both forms, and write the old one until ``sluicemq
upgrade`` has raised the number. Tests load a document of each past number, and run the last version beside
this one.

``meta: {_id: "schema", number, written?}``. A broker refuses a database whose ``number`` it can't read.
Brokers write what ``written`` allows, which is ``number`` where it is absent. An upgrade takes two steps::

    number 3             brokers of schemas 3 and 4 work, and write as schema 3 says
    number 4, written 3  a broker of schema 3 is refused when it starts; nothing of schema 4 is written yet
    number 4             only brokers of schema 4 work, and write as it says

Between them leases are read once more: a broker of schema 3 that had read the number just before is seen by
its lease, and the first step is taken back. Crash between them: brokers go on as before, and the upgrade is
repeated.

While a backup is restored the document is ``{number: 2147483647, restoring: {token, file, at}}``, in each of
its databases: no version of a broker reads that number. It is written before the first document, and replaced
by the one of the backup behind the last. Crash between them: brokers are refused until a restore has ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pymongo import ReturnDocument

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import COUNT, field, read_one
from sluicemq_broker.store.values import Document, date

#: 3, of version 0.3: records of ``queues`` may have ``removing`` and ``settings``. 4, of version 0.4: jobs
#: may lie in packs.
SCHEMA: Final = 4
#: The oldest and the newest schema that this version reads. Leases name them.
READS: Final = (3, SCHEMA)

#: The number of a database whose restore has not ended.
HALF_RESTORED: Final = 2**31 - 1

_KEY: Final = {"_id": "schema"}
_TOKEN: Final = "restoring.token"  # noqa: S105 - a field: tells two restores apart


class SchemaNumbers(NamedTuple):
    """The schema that a broker must read at least, and the one by which brokers write."""

    number: int
    written: int


class NewerSchema(UnavailableError):
    """Raised for a database of a newer version, whose documents this one can't read."""


class HalfRestored(NewerSchema):
    """Raised for a database whose restore has not ended."""


class SchemaStore:
    """The schema number of one database; repeating any of these after a lost reply is harmless."""

    def __init__(self, database: Documents) -> None:
        self.database = database.name
        self._meta = durable(database)["meta"]

    def open(self, new: int = SCHEMA) -> SchemaNumbers:
        """Return the numbers; raise :class:`NewerSchema` if this version can't read the database.

        Raise SetAside if somebody has damaged them.

        ``new``: the number that a new database gets. One older than this version reads is raised at once.
        """
        number = {"$max": [{"$ifNull": ["$number", new]}, READS[0]]}
        with translated():
            # failpoint schema.open
            found: Document | None = self._meta.find_one_and_update(
                _KEY, [{"$set": {"number": number}}], upsert=True, return_document=ReturnDocument.AFTER
            )
        return self._checked(found)

    def read(self) -> SchemaNumbers:
        """Return the numbers as they are now; raise :class:`NewerSchema` as :meth:`open` does."""
        with translated():
            return self._checked(self._meta.find_one(_KEY))

    def close(self, number: int) -> None:
        """Refuse brokers that can't read this schema from now on; what is written stays as it was."""
        older = {**_KEY, "number": {"$lt": number}}
        former = {"$ifNull": ["$written", "$number"]}
        with translated():
            # failpoint schema.close
            self._meta.update_one(older, [{"$set": {"written": former, "number": number}}])

    def reopen(self, number: int) -> None:
        """Take :meth:`close` back, unless the upgrade to this schema has ended."""
        closed = {**_KEY, "number": number, "written": {"$lt": number}}
        with translated():
            # failpoint schema.reopen
            self._meta.update_one(closed, [{"$set": {"number": "$written"}}, {"$unset": "written"}])

    def finish(self, number: int) -> None:
        """Have brokers write as this schema says, if the database is closed to brokers that can't read it."""
        with translated():
            # failpoint schema.finish
            self._meta.update_one({**_KEY, "number": number}, {"$unset": {"written": ""}})

    def is_there(self) -> bool:
        """Return True if a broker has ever opened this database."""
        with translated():
            return self._meta.find_one(_KEY) is not None

    def begin_restore(self, token: str, file: str, now: float) -> Document | None:
        """Close the database to all brokers until its restore has ended; return what was there.

        A restore that was under way has ended then: it finds another token.
        """
        mark = {"number": HALF_RESTORED, "restoring": {"token": token, "file": file, "at": date(now)}}
        with translated():
            # failpoint restores.begin
            before: Document | None = self._meta.find_one_and_replace(_KEY, mark, upsert=True)
        return before

    def is_restoring(self, token: str) -> bool:
        """Return True if the restore with this token is under way, and no later one."""
        with translated():
            return self._meta.find_one({**_KEY, _TOKEN: token}) is not None

    def end_restore(self, token: str, number: Document | None) -> bool:
        """Open the database again, with the document of the backup, or the one that was there before.

        False: another restore has begun.
        """
        marked = {**_KEY, _TOKEN: token}
        with translated():
            if number is None:
                # failpoint restores.remove_mark
                return self._meta.delete_one(marked).deleted_count == 1
            # failpoint restores.end
            return self._meta.replace_one(marked, number).matched_count == 1

    def _checked(self, found: Document | None) -> SchemaNumbers:
        number, written = read_one(self._meta, found or {}, read_numbers)
        if number == HALF_RESTORED:
            restoring = (found or {}).get("restoring")
            file = restoring.get("file", "a backup") if isinstance(restoring, dict) else "a backup"
            raise HalfRestored(
                f"database {self.database!r} is half restored: the restore of {file} runs, or was killed. If "
                "none runs: repeat it with sluicemq restore"
            )
        if number > SCHEMA:
            raise NewerSchema(
                f"database {self.database!r} was written by a newer SluiceMQ (schema {number}, this one "
                f"reads {READS[0]} to {SCHEMA}): install that version here, too, or use another --database"
            )
        return SchemaNumbers(number, written)


def read_numbers(stored: Document) -> SchemaNumbers:
    """Read the numbers of a database."""
    number: int = field(stored, "number", COUNT, SCHEMA)
    return SchemaNumbers(number, field(stored, "written", COUNT, number))
