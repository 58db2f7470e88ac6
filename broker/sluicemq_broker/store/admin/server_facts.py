"""Facts of a MongoDB server and a database that decide whether a broker works well on them; all are read.

A user of MongoDB may lack the right to see some of them: those are named, and the others are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pymongo import IndexModel
from pymongo import errors as mongo_errors

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.admin.inspector import Inspector
from sluicemq_broker.store.admin.kept import disk_of
from sluicemq_broker.store.availability import confirm
from sluicemq_broker.store.cluster.event_ring import RING
from sluicemq_broker.store.connection import Client, Documents
from sluicemq_broker.store.errors import brief, translated
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.index_models import CHILD_INDEXES, INDEXES, LINE_INDEXES
from sluicemq_broker.store.values import Document, seconds

_OPLOG: Final = "oplog.rs"


#: The last month in which each version of MongoDB gets fixes, as its makers say.
_FIXED_UNTIL: Final = {
    "4.4": "2024-02", "5.0": "2024-10", "6.0": "2025-07", "7.0": "2027-08", "8.0": "2029-10"
}  # fmt: skip


def fixed_until(version: str, now: float) -> str:
    """Return the month in which the last fixes of a version of MongoDB came; "" if it still gets some."""
    month = next((month for release, month in _FIXED_UNTIL.items() if version.startswith(f"{release}.")), "")
    return month if month and month < time.strftime("%Y-%m", time.gmtime(now)) else ""


class Member(NamedTuple):
    """A member of a replica set; ``lag``: seconds behind the primary, None where that is not known."""

    host: str
    state: str
    is_healthy: bool
    lag: float | None


class Oplog(NamedTuple):
    """The oplog: the seconds from its first to its last entry, the bytes in it, and those it may have."""

    seconds: float
    used: int
    size: int


class ServerFacts(NamedTuple):
    """The facts of one MongoDB; a fact that can't be read is None, and ``unseen`` says why."""

    version: str
    is_sharded: bool
    set_name: str | None
    ahead: float  # seconds by which its clock is ahead of this machine's
    uncertain: float  # half of the seconds that its answer took
    members: tuple[Member, ...] | None = None
    voters: tuple[int, int] | None = None  # members that vote, and those of them that have data
    oplog: Oplog | None = None
    disk: tuple[int, int] | None = None  # bytes that are free, and all, on the disk of this database
    unconfirmed: str = ""  # why a majority confirms nothing
    connections: tuple[int, int] | None = None  # open ones, and those that are possible beside them
    unseen: Mapping[str, str] = {}


def server_facts(client: Client, database: str, clock: Callable[[], float] = time.time) -> ServerFacts:
    """Read the facts; raises :class:`~sluicemq.UnavailableError` if the server does not answer."""
    with translated():
        client.admin.command("ping")  # connects: the next answer takes no longer than the way
        before = clock()
        hello = client.admin.command("hello")
        after = clock()
    try:
        confirm(client, database)
    except UnavailableError as error:
        unconfirmed = str(error)
    else:
        unconfirmed = ""
    unseen: dict[str, str] = {}

    def read(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (mongo_errors.PyMongoError, KeyError, TypeError, IndexError) as error:
            unseen[name] = brief(error)
            return None

    is_member = "setName" in hello
    return ServerFacts(
        version=str(read("version", lambda: client.server_info()["version"]) or ""),
        is_sharded=hello.get("msg") == "isdbgrid",
        set_name=hello.get("setName"),
        ahead=seconds(hello["localTime"]) - (before + after) / 2,
        uncertain=(after - before) / 2,
        members=read("members", lambda: _members(client)) if is_member else None,
        voters=read("voters", lambda: _voters(client)) if is_member else None,
        oplog=read("oplog", lambda: _oplog(client)) if is_member else None,
        disk=read("disk", lambda: _disk(client[database])),
        unconfirmed=unconfirmed,
        connections=read("connections", lambda: _connections(client)),
        unseen=unseen,
    )


def missing_indexes(database: Documents) -> dict[str, list[str]]:
    """Return the indexes that are missing, by queue; indexes that only some queues need are left out.

    Queues with waiting jobs, or with children, need more of them: those count where one of them is there.
    """
    found = {}
    for queue in Inspector(database).names():
        with translated():
            there = database[collection(queue)].index_information().keys()
        wanted = _names(INDEXES) | _begun(LINE_INDEXES, there) | _begun(CHILD_INDEXES, there)
        if missing := sorted(wanted - there):
            found[queue] = missing
    return found


def ring_of_events(database: Documents) -> bool | None:
    """Return whether the event bus of a database is a ring; None: no broker has made it yet."""
    with translated():
        found = list(database.list_collections(filter={"name": RING}))
    return bool(found[0].get("options", {}).get("capped")) if found else None


def _names(indexes: list[IndexModel]) -> set[str]:
    return {str(index.document["name"]) for index in indexes}


def _begun(indexes: list[IndexModel], there: Any) -> set[str]:
    names = _names(indexes)
    return names if names & set(there) else set()


def _disk(database: Documents) -> tuple[int, int]:
    """Return the bytes that are free, and all; KeyError if nothing has been stored: nobody knows the disk."""
    _used, free, total = disk_of(database)
    if not total:
        raise KeyError(f"there is no database {database.name} yet")
    return free, total


def _members(client: Client) -> tuple[Member, ...]:
    status: Document = client.admin.command("replSetGetStatus")
    newest = max(
        (member["optimeDate"] for member in status["members"] if member["stateStr"] == "PRIMARY"),
        default=None,
    )

    def lag(member: Document) -> float | None:
        at = member.get("optimeDate")
        if newest is None or at is None or member.get("health") != 1:
            return None
        return max(0.0, float((newest - at).total_seconds()))

    return tuple(
        Member(document["name"], document["stateStr"], document.get("health") == 1, lag(document))
        for document in status["members"]
    )


def _voters(client: Client) -> tuple[int, int]:
    members = client.admin.command("replSetGetConfig")["config"]["members"]
    voting = [member for member in members if member.get("votes", 1)]
    return len(voting), sum(not member.get("arbiterOnly") for member in voting)


def _oplog(client: Client) -> Oplog:
    local = client["local"]
    first, last = (next(local[_OPLOG].find({}, {"ts": 1}).sort("$natural", way).limit(1)) for way in (1, -1))
    stats = local.command("collStats", _OPLOG)
    return Oplog(float(last["ts"].time - first["ts"].time), int(stats["size"]), int(stats["maxSize"]))


def _connections(client: Client) -> tuple[int, int]:
    found = client.admin.command("serverStatus")["connections"]
    return int(found["current"]), int(found["available"])
