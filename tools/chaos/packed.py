"""Packs of a chaos run, as the oplog of MongoDB shows them."""

from __future__ import annotations

import re
from typing import Any

from pymongo import MongoClient


def packed(mongo_uri: str, database: str) -> dict[str, int]:
    """Return how many packs were stored, with how many jobs, and how many of these were lifted out alone.

    Of a transaction that has marked packs, each job that it has inserted came out of one.
    """
    found = {"packs": 0, "jobs": 0, "lifted": 0}
    of_queues = re.compile(rf"^{re.escape(database)}\.queue\.")
    with MongoClient[dict[str, Any]](mongo_uri, serverSelectionTimeoutMS=10_000) as mongo:
        of_jobs = {"$or": [{"ns": of_queues}, {"o.applyOps.ns": of_queues}]}
        for entry in mongo["local"]["oplog.rs"].find(of_jobs):
            writes = entry["o"].get("applyOps", [entry])
            inserted = [write["o"] for write in writes if write["op"] == "i"]
            packs = [document for document in inserted if "left" in document]
            found["packs"] += len(packs)
            found["jobs"] += sum(pack["count"] for pack in packs)
            if any(str(write.get("o2", {}).get("_id", "")).startswith("pack/") for write in writes):
                found["lifted"] += len(inserted)
    return found
