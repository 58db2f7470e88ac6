"""Small statements that write, sent by a short way through the driver.

The driver chooses server and connection, logs in, speaks TLS, reports events and raises its errors, as its
own verbs do. What these add is left out, a quarter to a half of the CPU of a small statement: a session for
each, the cluster's time, a loop of tries.

The driver has no public name for this way; the tests hold it to a real server.
"""

from __future__ import annotations

from pymongo.errors import OperationFailure

from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.values import Document, Jobs


def send_write(database: Documents, command: Document) -> Document:
    """Send a command once, and return its answer; raises the driver's errors.

    It waits for a majority if it does not say otherwise.
    """
    name = next(iter(command))
    command.setdefault("writeConcern", {"w": "majority"})
    with database.client._conn_for_writes(None, name) as connection:  # noqa: SLF001
        # failpoint *
        answer: Document = connection.command(database.name, command)
    return answer


def delete_all(jobs: Jobs, which: Document) -> int:
    """Delete these documents, and return how many there were; raises the driver's errors."""
    command = {"delete": jobs.name, "deletes": [{"q": which, "limit": 0}]}
    # failpoint *
    answer = send_write(jobs.database, command)
    problem = answer.get("writeConcernError") or next(iter(answer.get("writeErrors", ())), None)
    if problem:
        raise OperationFailure(problem["errmsg"], problem.get("code"), answer)
    return int(answer["n"])
