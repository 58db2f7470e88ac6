"""Jobs that exist exactly if a transaction of the application's MongoDB commits.

>>> with client.start_session() as session, session.start_transaction():
...     shop.orders.insert_one(order, session=session)
...     outbox.push_json(session, "mail", {"order": order["_id"]}, database="shop")

A push writes a post into the collection ``sluicemq_outbox``, within the transaction. Brokers with that
database in ``[broker] outboxes`` turn it into a job once the transaction has committed: exactly once, and
posts of one process in their order. If it aborts there is no job. Needs the extra ``mongo``, and one MongoDB,
a replica set, for the application and the brokers.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from sluicemq.arguments import plain_bytes, text
from sluicemq.headers import as_headers
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.outbox import OUTBOX, VALIDATOR

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession
    from pymongo.database import Database

__all__ = ["post", "prepare", "push", "push_json"]


def push(
    session: ClientSession,
    queue: str,
    payload: bytes,
    *,
    database: str | None = None,
    **options: Unpack[JobOptions],
) -> str:
    """Push a job within the session's transaction; returns its id. ``options``: as of ``Producer.push``.

    ``database``: the one with the outbox; None: the default one of the client, from its URI. Raises
    RuntimeError outside of a transaction: the job would be there whatever becomes of the rest.
    """
    if not session.in_transaction:
        raise RuntimeError(
            "outbox.push is called within a transaction: with session.start_transaction(), or by a function "
            "for session.with_transaction(); without one use Producer.push"
        )
    made = post(queue, payload, **options)
    home = session.client[database] if database else session.client.get_default_database()
    home[OUTBOX].insert_one(made, session=session)
    return str(made["_id"])


def push_json(
    session: ClientSession,
    queue: str,
    value: Any,
    *,
    database: str | None = None,
    **options: Unpack[JobOptions],
) -> str:
    """Push a value as JSON; see :func:`push`."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return push(session, queue, payload, database=database, **options)


def post(queue: str, payload: bytes, **options: Unpack[JobOptions]) -> dict[str, Any]:
    """Return the document of a post, for drivers such as pymongo's asynchronous one.

    Insert it into ``sluicemq_outbox`` within a transaction; its job has the id ``str(post["_id"])``.
    """
    from bson import ObjectId  # noqa: PLC0415 - an extra

    text("queue", queue)
    if not is_queue_name(queue):
        raise ValueError(f"queue is {queue[:80]!r}: {QUEUE_NAME_RULE}")
    headers, _ = as_headers(options)
    made = {"_id": ObjectId(), "queue": queue, "payload": plain_bytes(payload), "at": datetime.now(UTC)}
    return {**made, **({"headers": headers} if headers else {})}


def prepare(database: Database[Any]) -> None:
    """Make the outbox of a database, whose validator refuses what is no post; repeating it is harmless.

    Brokers do it too, at their start.
    """
    if OUTBOX not in database.list_collection_names(filter={"name": OUTBOX}):
        database.create_collection(OUTBOX, validator=VALIDATOR)
