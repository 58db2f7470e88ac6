"""Outboxes: posts that applications wrote in transactions of their own become jobs, each exactly once.

A post is a document of :data:`OUTBOX` in a database of the application::

    {_id, queue, payload, headers?, at?}        _id: its job has the id str(_id); posts go in the order of _id
    {_id, queue, ..., refused: {code, message}} can't become a job: it stays until somebody looks at it

The application inserts it in the transaction that changes its own data. A broker removes it in the
transaction that inserts the job. So a post that was committed becomes one job, and one that was aborted none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pymongo import IndexModel
from pymongo.change_stream import ChangeStream
from pymongo.client_session import ClientSession
from pymongo.errors import CollectionInvalid

from sluicemq.protocol.outbox import OUTBOX, VALIDATOR
from sluicemq_broker.job import Job
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.values import Document

_WAITING: Final[Document] = {"refused": None}


class Post(NamedTuple):
    """A post; its fields are as the application wrote them."""

    id: Any
    queue: Any
    payload: Any
    headers: Any


class OutboxStore:
    """The outbox of one database."""

    def __init__(self, database: Documents) -> None:
        self._database = database
        self._posts = durable(database)[OUTBOX]
        self._carried: deque[Any] = deque(maxlen=1000)  # their changes are no news

    def prepare(self) -> None:
        """Make the collection, which refuses what is no post, and its index; repeating it is harmless."""
        with translated():
            with suppress(CollectionInvalid):  # it is there, with a validator or without one
                # failpoint outbox.prepare
                self._database.create_collection(OUTBOX, validator=VALIDATOR)
            index = IndexModel([("refused", 1), ("_id", 1)], name="first")
            # failpoint outbox.index
            self._posts.create_indexes([index], **by_majority(self._posts))

    def first(self, most: int, full: Collection[str] = ()) -> list[Post]:
        """Return the first posts that wait, in the order of their ids: up to 4 MiB of them, one at least.

        ``full``: queues whose posts are left out.
        """
        found: list[Post] = []
        size = 0
        with translated():
            for post in (
                self._posts.find({**_WAITING, "queue": {"$nin": list(full)}})
                .sort("_id", 1)
                .limit(most)
                .batch_size(100)
            ):
                found.append(Post(post["_id"], post.get("queue"), post.get("payload"), post.get("headers")))
                size += len(post.get("payload") or b"")
                if size >= 4 << 20:
                    break
        return found

    def carry(
        self, posts: Sequence[Post], queue: QueueStore, jobs: Sequence[Job], now: float
    ) -> Sequence[Job] | None:
        """Remove posts and insert their jobs: both or neither. Return the jobs that were inserted.

        None: another broker was first. Raises DifferentStore where there are no transactions, and the errors
        of every statement. Crash before or after, or a reply that is lost: the posts are there and no job, or
        the jobs and no post; the next look shows it.
        """
        these = {"_id": {"$in": [post.id for post in posts]}}

        def remove(_new: Sequence[Job], session: ClientSession) -> bool:
            if self._posts.count_documents(these, session=session) < len(posts):
                return False
            # failpoint outbox.remove
            self._posts.delete_many(these, session=session)
            return True

        # failpoint outbox
        inserted = insert_with(queue, jobs, now, remove, "outboxes")
        if inserted is not None:
            self._carried.extend(post.id for post in posts)
        return inserted

    def refuse(self, post: Post, code: str, message: str) -> bool:
        """Mark a post that can't become a job; False: it is marked already, or is gone."""
        with translated():
            # failpoint outbox.refuse
            marked = self._posts.update_one(
                {"_id": post.id, **_WAITING}, {"$set": {"refused": {"code": code, "message": message}}}
            )
        return marked.modified_count > 0

    def is_news(self, change: Document | None) -> bool:
        """Return whether to look again: after a second of quiet, and unless the post was just carried.

        A post may commit behind later ones, and a full queue gets room, so quiet is a reason to look.
        """
        return change is None or change["documentKey"]["_id"] not in self._carried

    @contextmanager
    def watch(self) -> Iterator[ChangeStream[Document]]:
        """Watch for new posts; raises as a statement does, also where MongoDB has no change streams."""
        inserts: Sequence[Mapping[str, Any]] = [
            {"$match": {"operationType": "insert"}}, {"$project": {"documentKey": 1}}
        ]  # fmt: skip
        with translated(), self._posts.watch(inserts, max_await_time_ms=1000) as stream:
            yield stream
