"""Checks of MongoDB and the brokers after the drain: nothing is left, nothing is open, nothing has grown."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from pymongo import MongoClient
from pymongo.database import Database

from chaos import features
from chaos.breach import Breach
from chaos.ledger import Ledger
from chaos.life import PLACES
from chaos.stream_checks import Stored
from sluicemq import BadStreamError, Reader
from support.broker_process import check_balance

_MIB: Final = 2**20
#: Documents and lines of evidence, at most.
_SHOWN: Final = 10
#: Seconds within which brokers come to rest: permits go back, dead leases are found.
_REST: Final = 45.0
#: Microseconds that a transaction is open once nobody goes on with it.
_LONG_OPEN: Final = 5_000_000
#: Seconds that a broker must have lived to be asked if its memory is flat, and what it may grow by.
_LONG_LIFE: Final = 120.0
_GROWTH: Final = 1.3
_GROWTH_BYTES: Final = 20 * _MIB
#: Connections of clients that a broker may have when all programs have ended (of the checker, and those that
#: look in meanwhile), and seconds until it has found out about the others.
_MOST_CONNECTED: Final = 10
_CLOSED: Final = 30.0
#: Lines of a log that nobody should see, and those among them that a fault explains.
_ALARMING: Final = re.compile(r"Traceback|\bCRITICAL\b|\bERROR\b")
_EXPLAINED: Final = re.compile(
    r"MongoDB is away|has no primary|no MongoDB primary|is the primary, but its replica set calls"
    r"|has not been initiated|was declared dead by another broker"
    r"|was not written: (AutoReconnect|NotPrimary|InvalidOperation|NetworkTimeout)"
)


def read_streams(folder: Path) -> dict[str, list[Stored]]:
    """Read all streams, through a broker; one to which nobody has published is empty."""
    endpoints = json.loads((folder / PLACES).read_text())["endpoints"]
    return {name: _read_stream(endpoints[0], name) for name in features.STREAMS}


def _read_stream(endpoint: str, name: str) -> list[Stored]:
    try:
        with Reader(name, endpoint=endpoint) as reader:
            return [Stored(message.sequence, message.topic, message.payload.decode()) for message in reader]
    except BadStreamError:
        return []


def store_checks(mongo_uri: str, name: str) -> Iterator[Breach]:
    """Yield what is left in MongoDB, once there was time for it to go."""
    deadline = time.monotonic() + _REST
    with MongoClient[dict[str, Any]](mongo_uri, serverSelectionTimeoutMS=10_000) as mongo:
        while (found := [*left(mongo[name]), *open_transactions(mongo)]) and time.monotonic() < deadline:
            time.sleep(1)
    yield from found


def left(database: Database[dict[str, Any]]) -> Iterator[Breach]:
    """Yield what is left now."""
    yield from _jobs_left(database)
    for collection in database.list_collection_names():
        if collection.startswith(("removed.", "deleted.")):
            yield Breach("stuck", f"collection {collection} is left")
    for record in database["queues"].find({"removing": {"$exists": True}}):
        yield Breach("stuck", f"the removal of queue {record['_id']} has not ended", [str(record)])
    yield from _leases_left(database)
    if tasks := [*database["tasks"].find({"state": "running"})]:
        yield Breach("stuck", f"{len(tasks)} tasks are not done", [str(task) for task in tasks[:_SHOWN]])


def open_transactions(mongo: MongoClient[dict[str, Any]]) -> Iterator[Breach]:
    """Yield the transactions with which nobody goes on, of any database of this MongoDB."""
    pipeline: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleSessions": True}},
        {"$match": {"transaction.timeOpenMicros": {"$gt": _LONG_OPEN}}},
    ]
    if open_ones := [*mongo.admin.aggregate(pipeline)]:
        yield Breach("stuck", f"{len(open_ones)} transactions are open", [str(open_ones[0])[:2000]])


def _jobs_left(database: Database[dict[str, Any]]) -> Iterator[Breach]:
    for name in features.ALL:
        jobs = database[f"queue.{name}"]
        for state in ("ready", "reserved", "waiting", "dead"):
            if count := jobs.count_documents({"state": state}):
                shown = [str(job) for job in jobs.find({"state": state}).limit(_SHOWN)]
                yield Breach("stuck", f"{count} jobs of {name} are {state}", shown)


def _leases_left(database: Database[dict[str, Any]]) -> Iterator[Breach]:
    """Yield live leases whose broker gives no sign of life, and permits that nobody uses."""
    live = {owner["_id"]: owner["beat"] for owner in database["owners"].find({"state": "live"})}
    longest = max((owner["lease"] for owner in database["owners"].find()), default=0.0)
    time.sleep(longest)
    for lease in database["owners"].find({"state": "live"}):
        if live.get(lease["_id"]) == lease["beat"]:
            yield Breach("stuck", f"the lease of {lease['name']} is live, and nobody renews it", [str(lease)])
    for limit in database["limits"].find({"running": {"$exists": True}}):
        holders = {owner: about for owner, about in limit["running"].items() if about.get("permits")}
        if holders:
            yield Breach("stuck", f"permits of {limit['_id']} are held, and nothing runs", [str(limit)])


# ------------------------------------------------------------------ brokers and programs


def process_checks(folder: Path, ledger: Ledger, closed_within: float = _CLOSED) -> Iterator[Breach]:
    """Yield what logs, samples, exit codes and open connections show."""
    yield from _ended_programs(folder, ledger)
    for log in sorted([*folder.glob("broker-*/broker.log"), *folder.glob("programs/*.log")]):
        yield from _alarming_lines(log)
    for log in sorted(folder.glob("broker-*/broker.log")):
        yield from _unbalanced(log)
    lives = _lives(folder)
    yield from _grown(lives)
    yield from _still_connected(lives, closed_within)
    yield from _ended_brokers(folder)


def _ended_programs(folder: Path, ledger: Ledger) -> Iterator[Breach]:
    for fact in ledger.facts:
        if fact.program == "load" and fact.what in ("late", "failed"):
            log = folder / "programs" / f"{fact.id}.log"
            tail = log.read_text(errors="replace").splitlines()[-_SHOWN:] if log.exists() else []
            text = f"{fact.id} has not ended in time" if fact.what == "late" else f"{fact.id} has failed"
            yield Breach("stuck" if fact.what == "late" else "failed", text, [str(fact), *tail])


def _alarming_lines(log: Path) -> Iterator[Breach]:
    lines = log.read_text(errors="replace").splitlines()
    found = [at for at, line in enumerate(lines) if _ALARMING.search(line) and not _EXPLAINED.search(line)]
    if found:
        shown = [line for at in found[:3] for line in lines[max(0, at - 1) : at + _SHOWN * 3]]
        yield Breach("log", f"{len(found)} errors in {log.parent.name}/{log.name}", shown)


def _unbalanced(log: Path) -> Iterator[Breach]:
    for line in re.findall(r"counted: (.*)", log.read_text(errors="replace")):
        try:
            check_balance({name: int(count) for name, count in re.findall(r"(\w+)=(-?\d+)", line)})
        except AssertionError as error:
            yield Breach("counters", f"the counters of {log.parent.name} don't add up", [str(error)])


def _lives(folder: Path) -> dict[tuple[int, int], list[tuple[float, int]]]:
    """Return time and memory of each life of a broker, by its number and pid, the last ones last."""
    lives: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    path = folder / "samples.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        at, number, pid, memory, _ = json.loads(line)
        lives[number, pid].append((at, memory))
    return lives


def _grown(lives: dict[tuple[int, int], list[tuple[float, int]]]) -> Iterator[Breach]:
    """Yield brokers whose memory has grown from the second quarter of a life to its last."""
    for (number, pid), samples in lives.items():
        if samples[-1][0] - samples[0][0] < _LONG_LIFE:
            continue
        quarter = len(samples) // 4
        early, late = samples[quarter : 2 * quarter], samples[-quarter:]
        memory = [median(sample[1] for sample in part) for part in (early, late)]
        if memory[1] > memory[0] * _GROWTH + _GROWTH_BYTES:
            text = (
                f"broker {number} (pid {pid}) grew from {memory[0] / _MIB:.0f} to {memory[1] / _MIB:.0f} MiB"
            )
            yield Breach("memory", text)


def _still_connected(
    lives: dict[tuple[int, int], list[tuple[float, int]]], closed_within: float
) -> Iterator[Breach]:
    """Yield brokers that keep connections of clients that are gone, once there was time to close them."""
    last = dict(lives.keys())  # the last life of each
    deadline = time.monotonic() + closed_within
    for number, pid in last.items():
        while len(found := _of_clients(pid)) > _MOST_CONNECTED and time.monotonic() < deadline:
            time.sleep(0.5)
        if len(found) > _MOST_CONNECTED:
            text = f"broker {number} (pid {pid}) has {len(found)} connections of clients, and none runs"
            yield Breach("files", text, found[:_SHOWN])


def _of_clients(pid: int) -> list[str]:
    """Return the connections that a process has accepted; none if it does not run."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    doors = {connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN}
    open_ones = (
        connection
        for connection in found
        if connection.status != psutil.CONN_LISTEN and connection.laddr.port in doors
    )
    return [
        f"{connection.laddr.port} from {connection.raddr}: {connection.status}" for connection in open_ones
    ]


def _ended_brokers(folder: Path) -> Iterator[Breach]:
    path = folder / "events.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        event = json.loads(line)
        if event["what"] in ("ended", "problem"):
            yield Breach(
                "failed",
                f"{event.get('victim', 'the rig')}: {event.get('text', 'it ended by itself')}",
                [line],
            )
