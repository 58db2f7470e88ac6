"""Sums that follow a stream of changes, and can be rebuilt from it: each change counts exactly once.

Documents have a location and some tags. The sums are, for each tag and location, the number of documents that
have the tag there. Every change of a document is a message of the stream ``documents``, topic
``document.ID``::

    {"before": {"location": "oslo", "tags": ["a", "b"]} or null, "after": {...} or null}

``update`` follows the stream and adds or subtracts each change. ``rebuild`` begins at the first change with
empty sums. Both use the subscription ``sums``, so they never work at one time. Each may be killed at any
point, and another one goes on. The sums and the number of the last change in them are written in one
transaction, guarded by the fence of the hold. So nothing counts twice, and a worker that was away for too
long changes nothing any more.

::

    python aggregate.py change --documents 1000 --changes 500
    python aggregate.py update &
    python aggregate.py rebuild          # refused while the update runs, or was killed: see the README
    python aggregate.py check
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pymongo
from pymongo.client_session import ClientSession

from sluicemq import Batch, Client, HeldError, Message, Publisher, Reader, Start, Subscription

STREAM, NAME = "documents", "sums"
LOCATIONS = ("bergen", "lima", "oslo", "quito", "riga")

Sums = Counter[tuple[str, str]]


class Database:
    """The sums in MongoDB, and the number of the last change in them."""

    def __init__(self, uri: str, name: str) -> None:
        self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri, w="majority")
        database = self._client[name]
        self._sums = database["sums"]
        self._progress = database["progress"]

    def watermark(self) -> int:
        """Return the number of the last change that is in the sums."""
        found = self._progress.find_one({"_id": NAME})
        return int(found["last"]) if found else 0

    def prepare(self) -> None:
        """Make what :meth:`apply` needs, if it is missing."""
        born = {"$setOnInsert": {"last": 0, "fence": 0}}
        self._progress.update_one({"_id": NAME}, born, upsert=True)

    def clear(self, fence: int) -> None:
        """Remove sums and number; may be called again."""
        self.prepare()
        with self._client.start_session() as session:
            session.with_transaction(lambda session: self._clear(fence, session))

    def _clear(self, fence: int, session: ClientSession) -> None:
        held = {"_id": NAME, "fence": {"$lte": fence}}
        if not self._progress.update_one(
            held, {"$set": {"last": 0, "fence": fence}}, session=session
        ).matched_count:
            raise RuntimeError("too late: another worker goes on")
        self._sums.delete_many({}, session=session)

    def apply(self, batch: Batch) -> None:
        """Add these changes, unless they are in the sums already."""
        added = sums_of(batch)
        with self._client.start_session() as session:
            session.with_transaction(lambda session: self._apply(batch, added, session))

    def _apply(self, batch: Batch, added: Sums, session: ClientSession) -> None:
        before = {"_id": NAME, "last": {"$lt": batch.first}, "fence": {"$lte": batch.fence}}
        after = {"$set": {"last": batch.last, "fence": batch.fence}}
        if not self._progress.update_one(before, after, session=session).matched_count:
            if self._progress.find_one({"_id": NAME, "last": {"$gte": batch.last}}, session=session):
                return  # they are in the sums: the transaction was committed, and its answer was lost
            raise RuntimeError(f"changes {batch.first} to {batch.last} come too late: another worker goes on")
        updates = [
            pymongo.UpdateOne({"_id": f"{tag} {place}"}, {"$inc": {"count": count}}, upsert=True)
            for (tag, place), count in sorted(added.items())
            if count
        ]
        if updates:
            self._sums.bulk_write(updates, ordered=False, session=session)

    def sums(self) -> Sums:
        """Return all sums that are not zero."""
        found = ((*row["_id"].split(" "), row["count"]) for row in self._sums.find({"count": {"$ne": 0}}))
        return Counter({(tag, place): count for tag, place, count in found})


def sums_of(messages: Iterable[Message]) -> Sums:
    """Return what these changes add and subtract."""
    sums: Sums = Counter()
    for message in messages:
        change = json.loads(message.payload)
        for sign, document in ((-1, change["before"]), (1, change["after"])):
            if document:
                for tag in document["tags"]:
                    sums[tag, document["location"]] += sign
    return sums


def changes(documents: int, tags: int, count: int, seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield new documents, then changes of some: a document's id, and the change."""
    draw = random.Random(seed)  # noqa: S311 - an example
    there: dict[int, dict[str, Any] | None] = {}

    def drawn() -> dict[str, Any]:
        chosen = draw.sample(range(tags), min(10, tags))
        return {"location": draw.choice(LOCATIONS), "tags": [f"tag{number}" for number in sorted(chosen)]}

    for number in range(documents + count):
        document = number if number < documents else draw.randrange(documents)
        after = None if number >= documents and draw.random() < 0.1 else drawn()
        yield document, {"before": there.get(document), "after": after}
        there[document] = after


def change(options: argparse.Namespace) -> None:
    """Publish changes."""
    with Publisher(endpoint=options.endpoint) as publisher:
        for document, made in changes(options.documents, options.tags, options.changes, options.seed):
            publisher.publish(STREAM, f"document.{document}", json.dumps(made).encode())
    print(f"{options.documents + options.changes} changes are stored")


def update(options: argparse.Namespace) -> None:
    """Follow the stream until SIGTERM or SIGINT."""
    database = Database(options.mongodb_uri, options.database)
    database.prepare()
    worker = Subscription(
        STREAM,
        NAME,
        database.apply,
        batch=options.batch,
        position=database.watermark,
        endpoint=options.endpoint,
    )
    worker.run()


def rebuild(options: argparse.Namespace) -> None:
    """Start again with empty sums, and end with the newest change."""
    database = Database(options.mongodb_uri, options.database)

    def apply(batch: Batch) -> None:
        database.apply(batch)
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{batch.last} of {batch.newest}", end=end, file=sys.stderr)

    worker = Subscription(
        STREAM,
        NAME,
        apply,
        kind="rebuild",
        batch=options.batch,
        restart=Start.oldest(),
        on_restart=database.clear,
        position=database.watermark,
        follow=False,
        wait=False,
        endpoint=options.endpoint,
    )
    try:
        worker.run()
    except HeldError as error:
        sys.exit(f"not now: {error}")
    print(f"rebuilt up to change {worker.position}", file=sys.stderr)


def check(options: argparse.Namespace) -> None:
    """Compare the sums with a count from scratch, up to their last change."""
    database = Database(options.mongodb_uri, options.database)
    last = database.watermark()
    with Reader(STREAM, endpoint=options.endpoint) as reader:
        counted = sums_of(message for message in reader if message.sequence <= last)
    expected = Counter({key: count for key, count in counted.items() if count})
    if database.sums() != expected:
        sys.exit("the sums are wrong")
    with Client(endpoint=options.endpoint) as client:
        behind = next(
            subscription.behind
            for subscription in client.subscriptions.list(STREAM)
            if subscription.name == NAME
        )
    print(f"{len(expected)} sums are right, as of change {last}; {behind} changes are not in them yet")


def main() -> None:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("change", "update", "rebuild", "check"))
    parser.add_argument("--endpoint", help="of the broker; by default $SLUICEMQ_ENDPOINT, or this machine's")
    parser.add_argument("--mongodb-uri", default="mongodb://127.0.0.1:27017/?replicaSet=rs0")
    parser.add_argument("--database", default="aggregate")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--tags", type=int, default=300)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=500, help="changes in one transaction")
    options = parser.parse_args()
    {"change": change, "update": update, "rebuild": rebuild, "check": check}[options.what](options)


if __name__ == "__main__":
    main()
