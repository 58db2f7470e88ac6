"""A bank that transfers cents in transactions, for tests that kill or freeze it.

::

    bank.py ENDPOINT MONGODB_URI DATABASE POINT

Each job is an order, ``{"id", "from", "to", "cents"}``. At the second one it says ``halted ID``
at POINT, and waits for a line on stdin. Then it goes on, and says ``late ERROR`` if the order fails.
"""

import os
import sys
from itertools import count
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession

from sluicemq import Job, Worker, outbox


def main(endpoint: str, mongodb_uri: str, database: str, point: str) -> None:
    bank = MongoClient[dict[str, Any]](mongodb_uri)[database]
    numbers, orders = count(), dict[str, int]()

    def halt(job: Job, here: str) -> None:
        if here == point and orders[job.id] == 1:
            orders[job.id] = -1
            say("halted", job.id)
            os.read(0, 1)

    def transfer(job: Job) -> None:
        order = job.json()
        orders.setdefault(job.id, next(numbers))
        halt(job, "at-its-begin")

        def write(session: ClientSession) -> None:
            for name, cents in ((order["from"], -order["cents"]), (order["to"], order["cents"])):
                bank.accounts.update_one({"_id": name}, {"$inc": {"cents": cents}}, session=session)
                halt(job, "between-its-writes")
            bank.ledger.insert_one({"order": order["id"], "cents": order["cents"]}, session=session)
            outbox.push(session, "receipts", job.payload, database=database)
            job.commit_in(session)
            halt(job, "before-its-commit")

        try:
            with bank.client.start_session() as session:
                session.with_transaction(write)
        except Exception as error:
            say("late", type(error).__name__)
            raise
        halt(job, "behind-its-commit")

    say("ready")
    Worker("orders", transfer, endpoint=endpoint).run()


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


main(*sys.argv[1:])
