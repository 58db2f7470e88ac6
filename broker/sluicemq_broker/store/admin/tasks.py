"""Tasks: long operations in MongoDB, so that all brokers see them and go on when the one that began has died.

One document each, in the database of their queue: ``tasks: {_id, kind, queue, order, now, state, done, total,
owner, broker, started_at, changed_at, ended_at?, error?, answer?, cancel?}``. ``order``: what to do; ``now``:
when that was asked for, in Unix seconds. ``owner``: the id of the broker that carries it out, or "" if that
has stopped. Ended tasks stay a day to be looked at.
"""

from __future__ import annotations

from typing import Any

from pymongo import IndexModel, ReturnDocument

from sluicemq.protocol.wire import LOOKED, TaskField, TaskState
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import (
    COUNT,
    DATE,
    FLAG,
    NUMBER,
    PLAIN,
    PLAIN_MAP,
    TEXT,
    field,
    read_one,
    readable,
)
from sluicemq_broker.store.values import DAY, Document, date


class TaskStore:
    """The tasks of one database; repeating any of these after a lost reply is harmless."""

    def __init__(self, database: Documents) -> None:
        self._tasks = durable(database)["tasks"]

    def prepare(self) -> None:
        """Make the index that removes ended tasks after a day."""
        with translated():
            # failpoint tasks.prepare
            self._tasks.create_indexes(
                [IndexModel([("ended_at", 1)], expireAfterSeconds=DAY)], **by_majority(self._tasks)
            )

    def begin(self, task_id: str, task: Document) -> None:
        """Note a task that has begun."""
        with translated():
            # failpoint tasks.begin
            self._tasks.update_one({"_id": task_id}, {"$setOnInsert": task}, upsert=True)

    def note_progress(self, task_id: str, owner: str, progress: Document) -> bool | None:
        """Note the progress; return whether the task was cancelled, None if another broker has it by now."""
        running = {"_id": task_id, "owner": owner, "state": TaskState.RUNNING}
        with translated():
            # failpoint tasks.go_on
            found = self._tasks.find_one_and_update(
                running, {"$set": progress}, projection={"cancel": 1}, return_document=ReturnDocument.AFTER
            )
        return None if found is None else bool(found.get("cancel"))

    def end(self, task_id: str, owner: str, now: float, what: Document) -> None:
        """Note the end of a task and its result."""
        running = {"_id": task_id, "owner": owner, "state": TaskState.RUNNING}
        with translated():
            # failpoint tasks.end
            self._tasks.update_one(running, {"$set": {**what, "ended_at": date(now)}})

    def cancel(self, task_id: str) -> bool:
        """Mark a task as cancelled for its broker; False if it is missing, or has ended."""
        with translated():
            running = {"_id": task_id, "state": TaskState.RUNNING}
            # failpoint tasks.cancel
            return self._tasks.update_one(running, {"$set": {"cancel": True}}).matched_count == 1

    def take(self, task_id: str, former: str, owner: str, broker: str) -> bool:
        """Take a task over, if no other broker was first."""
        orphan = {"_id": task_id, "owner": former, "state": TaskState.RUNNING}
        with translated():
            # failpoint tasks.take
            taken = self._tasks.update_one(orphan, {"$set": {"owner": owner, "broker": broker}})
        return taken.modified_count == 1

    def find(self, task_id: str) -> Document | None:
        """Return a task; raises :class:`SetAside` if it can't be read."""
        with translated():
            found = self._tasks.find_one({"_id": task_id})
        return found and read_one(self._tasks, found, read_task)

    def running(self) -> list[Document]:
        """Return the tasks that have not ended."""
        with translated():
            return list(readable(self._tasks, self._tasks.find({"state": TaskState.RUNNING}), read_task))

    def latest(self) -> list[Document]:
        """Return the latest tasks, the last one first, without the answers and the ids that they name."""
        left_out: dict[str, Any] = {"answer": 0, "order.ids": 0}
        with translated():
            found = self._tasks.find({}, left_out).sort("started_at", -1).limit(200)
            return list(readable(self._tasks, found, read_task))


def read_task(stored: Document) -> Document:
    """Return a task with the fields that this version knows."""
    task: Document = {name: field(stored, name, TEXT) for name in ("_id", "kind", "queue", "owner", "broker")}
    task |= {name: field(stored, name, DATE) and stored[name] for name in ("started_at", "changed_at")}
    task |= {
        "order": field(stored, "order", PLAIN_MAP),
        "now": field(stored, "now", NUMBER),
        "state": TaskState(field(stored, "state", TEXT)),
        TaskField.DONE: field(stored, TaskField.DONE, COUNT),
        TaskField.TOTAL: field(stored, TaskField.TOTAL, COUNT, None),
        LOOKED: field(stored, LOOKED, COUNT, 0),
    }
    if field(stored, "ended_at", DATE, None) is not None:
        task["ended_at"] = stored["ended_at"]
    rare = {"error": PLAIN_MAP, "answer": PLAIN, "cancel": FLAG}
    return task | {name: field(stored, name, rule) for name, rule in rare.items() if name in stored}
