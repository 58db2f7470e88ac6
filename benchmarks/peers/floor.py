"""No peer: plain pymongo on the same MongoDB, insert_one at a time or insert_many and delete_many."""

import os
import time

from pymongo import MongoClient
from worker import Run, main, one_by_one

INSERTED, DELETED, THREADS = 1000, 100, 32
client = MongoClient(os.environ["MONGO_URL"])
jobs = client.bench_floor.jobs


def reset(_run: Run) -> None:
    client.drop_database("bench_floor")
    client.bench_floor.create_collection("jobs")


def push_one(run: Run) -> None:
    jobs.find_one()
    run.go()
    for payload in run.payloads():
        jobs.insert_one({"payload": payload})


def together(run: Run) -> None:
    """From many threads at once, each with a connection of the client's pool."""
    jobs.find_one()
    run.go()
    one_by_one(run, THREADS, lambda _at, payload: jobs.insert_one({"payload": payload}))


def push(run: Run) -> None:
    jobs.find_one()
    run.go()
    for batch in run.batches(INSERTED):
        jobs.insert_many([{"payload": payload} for payload in batch], ordered=False)


def work(run: Run) -> None:
    """Find the next ones, hand them out, delete them: one reader only, and nothing is reserved."""
    jobs.find_one()
    run.go()
    after = {}
    while run.left > 0:
        found = list(jobs.find(after).sort("_id", 1).limit(min(DELETED, run.left)))
        if not found:
            time.sleep(0.001)
            continue
        for job in found:
            run.took(job["payload"])
        jobs.delete_many({"_id": {"$in": [job["_id"] for job in found]}})
        after = {"_id": {"$gt": found[-1]["_id"]}}
        run.done += len(found)


main(reset=reset, push_one=push_one, together=together, push=push, work=work)
