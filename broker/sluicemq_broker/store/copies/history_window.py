"""How long a MongoDB keeps what has been changed since, which bounds the time of a copy.

A server keeps it for ``minSnapshotHistoryWindowInSeconds``, 300 by default. That of an embedded MongoDB is 0,
since its deleted jobs would fill the disk: a copy raises it, step by step as time goes on, and takes it back.
Killed in the middle: it stays at twice the time that the copy took, until the next copy or start.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any, Final, Self

from pymongo.errors import PyMongoError

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import translated

PARAMETER: Final = "minSnapshotHistoryWindowInSeconds"


class SnapshotOver(UnavailableError):
    """The copy took longer than MongoDB keeps the past."""


class Disturbed(UnavailableError):
    """The copy has to begin again: its server is gone, a collection is new, or another copy has ended."""


class HistoryWindow:
    """The window of one server while a copy is made; as a context it takes back what it has set."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begun = monotonic()
        self._set = 0

    def __enter__(self) -> Self:
        with translated():
            embedded = str(self._client.admin.command("hello").get("me", "")).endswith(".sock")
            if embedded:
                self._raise(60)  # none is kept between copies
        return self

    def __exit__(self, *_: object) -> None:
        if self._set:
            with suppress(PyMongoError):  # it has ended: its parameters went with it
                # failpoint history_window.lower
                self._client.admin.command({"setParameter": 1, PARAMETER: 0})

    def begin(self) -> None:
        """Count from now on: a copy begins."""
        self._begun = monotonic()

    def hold(self) -> None:
        """Raise the window in time, where that is ours to do; call it after each batch."""
        if self._set and monotonic() - self._begun > self._set / 2:
            with translated():
                self._raise(2 * self._set)

    def over(self) -> UnavailableError:
        """Return the error of a copy that took too long, or of one whose window another copy took back."""
        if self._set and self._seconds() != self._set:
            return Disturbed("another backup of this MongoDB has ended meanwhile")
        return SnapshotOver(
            f"after {monotonic() - self._begun:.0f} s MongoDB does not know any more how its data were when "
            f"the copy began: {PARAMETER} is {self._seconds()}. Set it to more seconds than a copy takes, on "
            f"each member: mongosh --eval 'db.adminCommand({{setParameter: 1, {PARAMETER}: 3600}})'; or back "
            "it up with mongodump --oplog, or by snapshots of its disk"
        )

    def _raise(self, seconds: int) -> None:
        # failpoint history_window.raise
        self._client.admin.command({"setParameter": 1, PARAMETER: seconds})
        self._set = seconds

    def _seconds(self) -> Any:
        try:
            return self._client.admin.command({"getParameter": 1, PARAMETER: 1})[PARAMETER]
        except (PyMongoError, KeyError):
            return "300 by default"
