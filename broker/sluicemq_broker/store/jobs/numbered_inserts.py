"""Inserts that can be sent again: MongoDB knows them by session and number, and carries each out once.

A reply can be lost, or held for so long that the broker gives it up, and the statement can land after that. A
second insert of the ids would then store a job again that was done and removed meanwhile. So every insert has
a number in a session of its own::

    session  a1f0…  number 17   insert [a, b, c]      no answer
    session  a1f0…  number 17   insert [a, b, c]      "3, carried out before", whatever became of them
    session  a1f0…  number 19   insert [d]            from now on whatever lands with 17 is refused

The driver's own retry does so too, but gives up after one. The server remembers a number for 30 minutes after
the session's last use, also on a new primary: it knows what a majority has carried out, and carries out the
rest. A stand-alone server has no such memory.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from sluicemq_broker.job import State
from sluicemq_broker.store.connection import Client, Documents
from sluicemq_broker.store.errors import ServerCode
from sluicemq_broker.store.short_way import send_write

#: Codes for a repetition whose outcome is forgotten: the session expired, or the oplog has moved on.
_FORGOTTEN: Final = (
    ServerCode.NO_SUCH_SESSION,
    ServerCode.INCOMPLETE_TRANSACTION_HISTORY,
    ServerCode.TRANSACTION_TOO_OLD,
)


#: A session's id, as statements name it.
Session = Mapping[str, Binary]


class MongoSessions:
    """The sessions of one client, from :func:`sessions_of`; the driver knows nothing of them."""

    def __init__(self, client: Client) -> None:
        self.numbered = True
        """False: this server remembers no numbers."""
        self._client = client  # kept alive: no other one gets its identity
        self._free: list[Session] = []
        # Every second number is for a fence.
        self._numbers = itertools.count(time.time_ns(), 2)

    def take(self) -> Numbered:
        """Return a session without a statement under way, and a number that was never sent in it."""
        session = self._free.pop() if self._free else {"id": Binary.from_uuid(uuid.uuid4())}
        return Numbered(session, Int64(next(self._numbers)))

    def give(self, session: Session) -> None:
        """Take back a session whose statement was answered; others are never given back."""
        self._free.append(session)


class Numbered(NamedTuple):
    """A session, and the number of a statement in it."""

    session: Session
    number: Int64


def sessions_of(client: Client) -> MongoSessions:
    """Return the sessions of a client, one object for each client."""
    return _of_clients.setdefault(id(client), MongoSessions(client))


#: By identity: the driver takes all clients of one server for equal. Each keeps its client alive.
_of_clients: Final[dict[int, MongoSessions]] = {}


class Insert:
    """One insert into one collection, sent until it is answered: an unordered one, of up to 16 MiB.

    The documents may differ between tries, but not their number and order: the server knows them by their
    places.
    """

    def __init__(self, sessions: MongoSessions, database: Documents, collection: str) -> None:
        self._sessions = sessions
        self._database = database
        self._collection = collection
        self._numbered: Numbered | None = None
        self._times = 0

    def send(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Send it, or send it again; return the server's answer, with ``writeErrors`` if there are any.

        Raises the driver's errors. Call it again while the outcome is open; then call :meth:`end`.
        """
        if not self._sessions.numbered:
            return self._command(documents)
        numbered = self._numbered = self._numbered or self._sessions.take()
        self._times += 1
        try:
            return self._command(documents, {"lsid": numbered.session, "txnNumber": numbered.number})
        except OperationFailure as error:
            if error.code == ServerCode.ILLEGAL_OPERATION:
                self._sessions.numbered = False
                return self._command(documents)
            if error.code in _FORGOTTEN:
                self._numbered = None  # the next try is another statement: it may store a job again
            raise

    def end(self, *, all_stored: bool) -> None:
        """End it, as the outcome is known and final. Raises as :meth:`send`; then call it again."""
        if self._numbered is None:
            return
        if self._times > 1 and not all_stored:
            self._fence(self._numbered)
        self._sessions.give(self._numbered.session)
        self._numbered = None

    def give_up(self) -> None:
        """Give it up, as it was refused and is not sent again."""
        if self._numbered is not None and self._times == 1:  # else an earlier copy may be under way still
            self._sessions.give(self._numbered.session)
        self._numbered = None

    def _fence(self, numbered: Numbered) -> None:
        """Use the next number for nothing: whatever lands with ours is refused from now on.

        The server remembers what it has carried out, but no refusals. It would store a document that it
        refused, as its id was there, if an earlier copy of the statement landed after that id is removed.
        """
        # No job has this id
        nothing = {"q": {"_id": False}, "u": {"$set": {"state": State.DEAD}}}
        number = {"lsid": numbered.session, "txnNumber": Int64(numbered.number + 1)}
        command = {"update": self._collection, "updates": [nothing], **number}
        # failpoint jobs.fence
        send_write(self._database, command)

    def _command(
        self,
        documents: Sequence[Mapping[str, Any]],
        number: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        command = {
            "insert": self._collection,
            "documents": list(documents),
            "ordered": False,
            **number,
        }
        # failpoint jobs.insert
        return send_write(self._database, command)
