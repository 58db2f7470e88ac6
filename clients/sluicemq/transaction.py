"""The end of a job within a transaction of its handler, for ``Job.commit_in``; needs the extra ``mongo``.

The broker says by which updates a job ends, and this sends them in the handler's session. Each must find its
document; otherwise the error that is raised aborts the transaction.
"""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from sluicemq.headers import as_bytes
from sluicemq.protocol.errors import DifferentStoreError

if TYPE_CHECKING:
    from sluicemq.job import Job

#: The server's code of a write conflict, and the label by which ``with_transaction`` tries again.
_WRITE_CONFLICT: Final = 112
_TRANSIENT: Final = "TransientTransactionError"


class Ending:
    """The end of one job in a transaction of a pymongo ``session``. The caller sends the updates in order."""

    def __init__(self, job: Job, session: Any, result: bytes | None, *, awaits: bool) -> None:
        from pymongo.asynchronous.client_session import AsyncClientSession  # noqa: PLC0415 - an extra

        if isinstance(session, AsyncClientSession) != awaits:
            wanted = "AsyncMongoClient" if awaits else "MongoClient"
            raise TypeError(f"commit_in of this job takes a session of pymongo's {wanted}")
        if not session.in_transaction:
            raise RuntimeError(
                "commit_in is called within a transaction: with session.start_transaction(), or by a "
                "function for session.with_transaction()"
            )
        self.result = b"" if result is None else as_bytes(result)
        self._job = job
        self._session = session
        self._moved = False

    def updates(self, statements: bytes) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
        """Return collection, filter and update of each statement in the broker's answer."""
        from bson import decode  # noqa: PLC0415 - an extra

        updates = []
        answer = decode(statements)
        self._moved = answer.get("moved", False)
        for statement in answer["statements"]:
            if statement["result_at"]:
                *places, last = statement["result_at"]
                reduce(getitem, places, statement["update"])[last] = self.result
            collection = self._session.client[statement["database"]][statement["collection"]]
            updates.append((collection, statement["filter"], statement["update"]))
        return updates

    def not_found(self, *, own: bool) -> Exception:
        """Return why an update has found nothing: that of the job, which is held still, or of a parent."""
        from pymongo.errors import OperationFailure  # noqa: PLC0415 - an extra

        if own and not self._moved:
            return DifferentStoreError(
                f"job {self._job.id} is not found where its broker has it: the session is of another "
                "MongoDB, or its transaction has begun before the job came"
            )
        text = f"another child of the parent of job {self._job.id} has ended meanwhile"
        if own:
            text = f"job {self._job.id} lies in a document of its own since this transaction began: try again"
        return OperationFailure(text, _WRITE_CONFLICT, {"errorLabels": [_TRANSIENT]})


def is_conflict(error: Exception) -> bool:
    """Return whether somebody else has written to the job meanwhile: it may be another worker's."""
    return getattr(error, "code", None) == _WRITE_CONFLICT
