"""Inserts that can be sent again: MongoDB knows them by session and number, and carries each out once.

A reply can be lost, or held for so long that it is given up, and the statement itself can land after its
sender has given it up. A second insert of the same ids would then store a job anew that has been
done and removed meanwhile. So every insert has a number in a session of its own::

    session  a1f0…  number 17   insert [a, b, c]      no answer
    session  a1f0…  number 17   insert [a, b, c]      "3, carried out before", whatever became of them
    session  a1f0…  number 19   insert [d]            from now on whatever lands with 17 is refused

This is what the driver's own retry does, which gives up after one. The server remembers it for 30
minutes after the session's last use, and on a new primary as well: what was carried out by a majority
is known there, what was not is carried out. A stand-alone server has no such memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from sluicemq_broker.job import State
from sluicemq_broker.store.connection import Documents

#: The server's code for a number on a stand-alone: IllegalOperation.
_NO_NUMBERS: Final = 20
#: Its codes for a repetition of which it has forgotten whether it was carried out: a session that
#: expired, and an oplog that has moved on.
_FORGOTTEN: Final = (206, 217, 225)
#: No job has this id.
_NOBODY: Final = False


class Sessions:
    """The sessions of one client; get them with :func:`sessions_of`.

    The driver must never have one back: it would count on from its own numbers, which are lower.
    """

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self.numbered = True
        """False: this server knows no repetition."""
        self._client = client
        self._all: list[ClientSession] = []
        self._free: list[ClientSession] = []
        # Above all that the driver has sent in the sessions that it gives us; each second one is for a fence.
        self._numbers = itertools.count(time.time_ns(), 2)

    def take(self) -> Numbered:
        """One in which nothing is under way, and a number that was never sent in it."""
        return Numbered(self._free.pop() if self._free else self._new(), Int64(next(self._numbers)))

    def give(self, session: ClientSession) -> None:
        """Its statement was answered. One whose statement may still land is not given back."""
        self._free.append(session)

    def _new(self) -> ClientSession:
        session = self._client.start_session(causal_consistency=False)
        self._all.append(session)
        return session


class Numbered(NamedTuple):
    """A session, and the number of a statement in it."""

    session: ClientSession
    number: Int64


def sessions_of(client: MongoClient[dict[str, Any]]) -> Sessions:
    """The one collection of sessions that a client has."""
    return _of_clients.setdefault(id(client), Sessions(client))


#: By identity: the driver takes all clients of one server for equal. Each keeps its client alive.
_of_clients: Final[dict[int, Sessions]] = {}


class Insert:
    """One insert into one collection, sent as often as it takes: an unordered one, of up to 16 MiB.

    The documents may differ from time to time, but not their number and order: the server knows
    them by their places.
    """

    def __init__(self, sessions: Sessions, database: Documents, collection: str) -> None:
        self._sessions = sessions
        self._database = database
        self._collection = collection
        self._numbered: Numbered | None = None
        self._times = 0

    def send(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Send it, or send it again; returns the server's answer, with ``writeErrors`` if there are any.

        Raises the driver's errors. Call it again where the outcome is open; else :meth:`end`.
        """
        if not self._sessions.numbered:
            return self._command(documents)
        numbered = self._numbered = self._numbered or self._sessions.take()
        self._times += 1
        try:
            return self._command(documents, numbered.session, {"txnNumber": numbered.number})
        except OperationFailure as error:
            if error.code == _NO_NUMBERS:
                self._sessions.numbered = False
                return self._command(documents)
            if error.code in _FORGOTTEN:
                self._numbered = None  # the next try is another statement: it may store a job again
            raise

    def end(self, *, all_stored: bool) -> None:
        """The outcome is known, and nothing of it can happen later. Raises as :meth:`send`; then again."""
        if self._numbered is None:
            return
        if self._times > 1 and not all_stored:
            self._fence(self._numbered)
        self._sessions.give(self._numbered.session)
        self._numbered = None

    def drop(self) -> None:
        """It was refused, and is not sent again."""
        if self._numbered is not None and self._times == 1:  # else an earlier copy may be under way still
            self._sessions.give(self._numbered.session)
        self._numbered = None

    def _fence(self, numbered: Numbered) -> None:
        """Use the next number up, for nothing: whatever lands with ours is refused from now on.

        The server knows what it has carried out. A document that it refused, as its id was there, it
        would store if an earlier copy of the statement lands when that id is gone.
        """
        nothing = {"q": {"_id": _NOBODY}, "u": {"$set": {"state": State.DEAD}}}
        number = {"txnNumber": Int64(numbered.number + 1), "writeConcern": {"w": "majority"}}
        command = {"update": self._collection, "updates": [nothing], **number}
        self._database.command(command, session=numbered.session)

    def _command(
        self,
        documents: Sequence[Mapping[str, Any]],
        session: ClientSession | None = None,
        number: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        command = {
            "insert": self._collection,
            "documents": list(documents),
            "ordered": False,
            "writeConcern": {"w": "majority"},
            **number,
        }
        return self._database.command(command, session=session)
