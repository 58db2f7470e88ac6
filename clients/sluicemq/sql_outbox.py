"""Jobs that exist exactly if a transaction of an application's SQL database commits.

>>> with connection:  # of sqlite3, psycopg or another driver of DB-API 2
...     connection.execute("INSERT INTO orders ...")
...     sql_outbox.push(connection.cursor(), "mail", b"order 7")

A push inserts a post into the table ``sluicemq_outbox``, within the transaction. A :class:`Relay`, a small
program of your own, pushes what was committed and then deletes it. It may die at any moment, and several may
run: each post becomes one job, as its id is also its ``dedupe_id``, which the broker knows for ``remember``
seconds, a day by default. Posts go in the order of their numbers.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, Unpack

from sluicemq.arguments import plain_bytes, text
from sluicemq.complaints import log
from sluicemq.headers import as_headers
from sluicemq.producer import Producer
from sluicemq.protocol.durations import Duration, in_seconds
from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    DuplicateError,
    ForbiddenError,
    SluiceError,
    TimeoutError,
    TooLargeError,
)
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.readable import said
from sluicemq.receipt import PushReceipt
from sluicemq.transport.send_buffer import first_message

__all__ = ["POSTGRESQL", "SQLITE", "Relay", "push", "push_json"]

_TABLE: Final = """CREATE TABLE IF NOT EXISTS sluicemq_outbox (
    number {number},
    id VARCHAR(128) NOT NULL UNIQUE,
    queue VARCHAR(64) NOT NULL,
    payload {payload} NOT NULL,
    headers TEXT,
    refused TEXT
)"""
#: The statements that make the table; in other databases the types may have other names.
SQLITE: Final = _TABLE.format(number="INTEGER PRIMARY KEY AUTOINCREMENT", payload="BLOB")
POSTGRESQL: Final = _TABLE.format(number="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", payload="BYTEA")

#: Posts in one page, and bytes of their payloads, at most; one post may have more.
_PAGE: Final = 500
_PAGE_BYTES: Final = 4 << 20
#: Seconds for an answer of the broker, until a post is pushed again.
_PATIENCE: Final = 30.0
#: Refusals of posts that can never become jobs.
_FOR_GOOD: Final = (BadFramesError, BadHeadersError, BadQueueError, ForbiddenError, TooLargeError)


def push(
    cursor: Any, queue: str, payload: bytes, *, place: str | None = None, **options: Unpack[JobOptions]
) -> str:
    """Push a job within the cursor's transaction; returns its id. ``options``: as of ``Producer.push``.

    ``place``: the driver's mark for a parameter; None: ``?`` for a cursor of sqlite3, else ``%s``. Raises
    TypeError, ValueError or :class:`~sluicemq.BadHeadersError` for wrong arguments, and the driver's errors.
    """
    text("queue", queue)
    if not is_queue_name(queue):
        raise ValueError(f"queue is {queue[:80]!r}: {QUEUE_NAME_RULE}")
    headers, _ = as_headers(options)
    job_id = uuid.uuid4().hex
    row = (job_id, queue, plain_bytes(payload), None if headers is None else json.dumps(headers))
    statement = "INSERT INTO sluicemq_outbox (id, queue, payload, headers) VALUES (?, ?, ?, ?)"
    cursor.execute(_marked(statement, place or _place_of(cursor)), row)
    return job_id


def push_json(
    cursor: Any, queue: str, value: Any, *, place: str | None = None, **options: Unpack[JobOptions]
) -> str:
    """Push a value as JSON; see :func:`push`."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return push(cursor, queue, payload, place=place, **options)


class _Post(NamedTuple):
    number: int
    id: str
    queue: str
    payload: bytes
    headers: str | None


#: A post and its job.
_Made: TypeAlias = tuple[_Post, PushReceipt]


class Relay:
    """Carries the posts of one database to a broker; ``connect()`` returns a connection of DB-API 2.

    ``remember``: how long the broker knows a post after its push, so that one that is pushed again makes no
    second job. ``every``: seconds between two looks. A post that can never become a job stays in the table,
    with the reason in ``refused``. A queue that takes no jobs now keeps no other queue's posts waiting.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        producer: Producer,
        *,
        remember: Duration = 86_400.0,
        every: float = 1.0,
        place: str | None = None,
    ) -> None:
        self._connect = connect
        self._producer = producer
        self._remember = in_seconds(remember)
        self._every = every
        self._place = place

    def run(self, stop: threading.Event) -> None:
        """Carry posts until ``stop`` is set; after an error of the database it connects again."""
        while not stop.is_set():
            try:
                connection = self._connect()
                try:
                    while not stop.is_set():
                        self.carry(connection, stop)
                        stop.wait(self._every)
                finally:
                    connection.close()
            except Exception as error:  # noqa: BLE001 - each driver has errors of its own
                log.warning("the relay of an outbox goes on after: %s", said(error, named=True))
                stop.wait(self._every)

    def carry(self, connection: Any, stop: threading.Event | None = None) -> int:
        """Carry all posts that are there, but those of queues that take none now; returns how many.

        Killed, or a reply lost: posts whose deletion was not committed are pushed again, and known.
        """
        carried, waiting = 0, dict[str, float]()
        while not (stop and stop.is_set()):
            posts = self._read(connection, waiting)
            if not posts:
                break
            lines: dict[str, deque[_Made]] = {}
            for post in posts:
                if (job := self._made(connection, post)) is not None:
                    lines.setdefault(post.queue, deque()).append((post, job))
            while lines := {queue: line for queue, line in lines.items() if line and queue not in waiting}:
                pushed = [made for line in lines.values() for made in self._push_message(line)]
                done = [post for post, job in pushed if self._stored(connection, post, job, waiting)]
                delete = "DELETE FROM sluicemq_outbox WHERE number = ?"
                self._write(connection, *((delete, (post.number,)) for post in done))
                carried += len(done)
        return carried

    def _read(self, connection: Any, waiting: dict[str, float]) -> list[_Post]:
        """Return the first posts, but those of these queues."""
        without = f" AND queue NOT IN ({', '.join('?' * len(waiting))})" if waiting else ""
        which = f"FROM sluicemq_outbox WHERE refused IS NULL{without}"
        names = sorted(waiting)
        cursor = connection.cursor()
        sizes = f"SELECT number, length(payload) {which} ORDER BY number LIMIT {_PAGE}"
        last, size = -1, 0
        self._execute(cursor, sizes, names)
        for number, length in cursor.fetchall():
            size += length
            if last >= 0 and size > _PAGE_BYTES:
                break
            last = number
        page = f"SELECT number, id, queue, payload, headers {which} AND number <= ? ORDER BY number"
        self._execute(cursor, page, [*names, last])
        posts = [
            _Post(number, job_id, queue, bytes(payload), headers)
            for number, job_id, queue, payload, headers in cursor.fetchall()
        ]
        cursor.close()
        connection.rollback()  # it holds nothing while the broker is asked
        return posts

    def _made(self, connection: Any, post: _Post) -> PushReceipt | None:
        """Return the job of a post, which is not pushed yet; None if it never can be."""
        try:
            options = json.loads(post.headers) if post.headers else {}
            own: Any = {"dedupe_id": post.id, "dedupe_window": self._remember, **options}
            return self._producer._made(PushReceipt, post.queue, post.payload, post.id, own)
        except (TypeError, ValueError, *_FOR_GOOD) as error:
            self._refuse(connection, post, error)
            return None

    def _push_message(self, line: deque[_Made]) -> list[_Made]:
        """Take out the first posts of a queue, as many as one message holds, and push them.

        A broker without room for one refuses the rest of the message, too; but it may take the next message.
        """
        jobs = [job for _, job in line]
        del jobs[first_message(jobs) :]
        self._producer._enqueue_message(jobs)
        return [line.popleft() for _ in jobs]

    def _stored(self, connection: Any, post: _Post, job: PushReceipt, waiting: dict[str, float]) -> bool:
        """Return whether the broker has the job of a post; note why it never will."""
        try:
            job.wait(waiting.get(post.queue, _PATIENCE))
        except DuplicateError:
            return True  # an earlier push of it, or the job that its own dedupe_id stands for
        except _FOR_GOOD as error:
            self._refuse(connection, post, error)
            return False
        except (SluiceError, TimeoutError) as error:
            if post.queue not in waiting:
                log.warning("posts of queue %s wait: %s", post.queue, error)
            waiting[post.queue] = 0.0 if isinstance(error, TimeoutError) else _PATIENCE
            return False
        return True

    def _refuse(self, connection: Any, post: _Post, error: Exception) -> None:
        code = getattr(error, "code", BadHeadersError.code)
        log.warning("post %s of an outbox can't become a job: %s: %s", post.id, code, error)
        refuse = "UPDATE sluicemq_outbox SET refused = ? WHERE number = ?"
        self._write(connection, (refuse, (f"{code}: {error}"[:1000], post.number)))

    def _write(self, connection: Any, *statements: tuple[str, Sequence[Any]]) -> None:
        cursor = connection.cursor()
        for statement, values in statements:
            self._execute(cursor, statement, values)
        cursor.close()
        connection.commit()

    def _execute(self, cursor: Any, statement: str, values: Sequence[Any]) -> None:
        cursor.execute(_marked(statement, self._place or _place_of(cursor)), tuple(values))


def _place_of(cursor: Any) -> str:
    return "?" if type(cursor).__module__.partition(".")[0] == "sqlite3" else "%s"


def _marked(statement: str, place: str) -> str:
    return statement.replace("?", place)
