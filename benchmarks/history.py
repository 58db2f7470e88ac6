"""What a minute of history costs, early and late in a day: ``python benchmarks/history.py [--json]``.

One document of a day in each of four layouts: minutes nested under hours, or 1,440 of them in a flat list;
each filled as the day goes on, or made ahead with all its counters at 0. The first is what is used. Each is
filled up to a minute of the day, as a queue in use all day does it; then that minute is counted up again and
again. Told are the microseconds of mongod's CPU that one update takes, all layouts in turn, and the bytes of
the document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
import psutil
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from sluicemq_broker.embedded import EmbeddedMongo

COUNTERS = ("pushed", "delivered", "committed", "waited", "worked")
MINUTES = (0, 719, 1439)
BATCH, BATCHES = 200, 10
Documents = Collection[dict[str, Any]]


def main() -> int:
    """Measure and print; 1 if the last minute of what is used costs more than twice the first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with _collection() as (documents, mongod):
        figures = {
            minute: {name: _prepared(documents, name, minute) for name in LAYOUTS} for minute in MINUTES
        }
        for minute in MINUTES:
            took = dict.fromkeys(LAYOUTS, 0.0)
            for _ in range(BATCHES):
                for name, (path, _ahead) in LAYOUTS.items():
                    took[name] += _batch(documents, mongod, f"{name} {minute}", path(minute))
            for name, seconds in took.items():
                figures[minute][name]["us"] = seconds / BATCH / BATCHES * 1e6
    _show(figures, as_json=options.json)
    return int(figures[1439][USED]["us"] > 2 * figures[0][USED]["us"])


def _nested(minute: int) -> str:
    return f"hours.{minute // 60:02}.minutes.{minute % 60:02}"


def _flat(minute: int) -> str:
    return f"minutes.{minute:04}"


#: The path to a minute, and whether the document is made ahead.
LAYOUTS: dict[str, tuple[Callable[[int], str], bool]] = {
    "nested": (_nested, False),
    "nested, ahead": (_nested, True),
    "flat": (_flat, False),
    "flat, ahead": (_flat, True),
}
USED = "nested"


def _prepared(documents: Documents, name: str, minute: int) -> dict[str, float]:
    """A document as it is when a minute begins."""
    path, ahead = LAYOUTS[name]
    document: dict[str, Any] = {"_id": f"{name} {minute}", "total": dict.fromkeys(COUNTERS, 1)}
    for at in range(1440 if ahead else minute + 1):
        place = document
        for step in path(at).split("."):
            place = place.setdefault(step, {})
        place.update(dict.fromkeys(COUNTERS, 100 if at <= minute else 0))
    documents.insert_one(document)
    return {"bytes": len(bson.encode(document))}


def _batch(documents: Documents, mongod: psutil.Process, document: str, path: str) -> float:
    update = {"$inc": {f"{where}.{name}": 3 for where in ("total", path) for name in COUNTERS}}
    updates = [UpdateOne({"_id": document}, update) for _ in range(BATCH)]
    before = mongod.cpu_times()
    documents.bulk_write(updates, ordered=False)
    after = mongod.cpu_times()
    return float(after.user + after.system - before.user - before.system)


@contextmanager
def _collection() -> Iterator[tuple[Documents, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="sluicemq-history-") as folder:
        store = EmbeddedMongo(Path(folder))
        try:
            with MongoClient[dict[str, Any]](store.start(), w="majority") as client:
                yield client["bench"]["history"], psutil.Process(store.pid)
        finally:
            store.stop()


def _show(figures: dict[int, dict[str, dict[str, float]]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    print(f"{'':16}" + "".join(f"  minute {minute:4}" for minute in MINUTES) + "   bytes at the end")
    for name in LAYOUTS:
        row = "".join(f"{figures[minute][name]['us']:10.0f} us" for minute in MINUTES)
        print(f"{name:16}{row}{figures[1439][name]['bytes']:12.0f}")


if __name__ == "__main__":
    sys.exit(main())
