"""Diagnosis of a missing primary: each host of the URI is asked for its state, and the cure is named.

The driver has one sentence for all causes, "no replica set members found yet".
"""

from __future__ import annotations

from typing import Any, Final

import pymongo
from pymongo import errors as mongo_errors
from pymongo.uri_parser import parse_uri

from sluicemq_broker.config import MongoUri

#: Seconds for one host, and how many hosts are asked.
_PATIENCE: Final = 2.0
_MOST_ASKED: Final = 5
#: Options that describe the replica set, not how to reach one host of it.
_OF_THE_WHOLE: Final = {"replicaset", "directconnection", "loadbalanced", "authsource", "authmechanism"}


def why_no_primary(text: str) -> str | None:
    """Return what is wrong with the hosts of a URI and what to do, as they say; None if they don't say."""
    uri = MongoUri.read(text)
    wanted = next((value for name, value in uri.parts.options if name.lower() == "replicaset"), None)
    for host in _hosts(text)[:_MOST_ASKED]:
        said = _hello(uri, host)
        if said and (why := _why(host, wanted, said)):
            return why
    return None


def _hosts(text: str) -> list[str]:
    if not text.startswith("mongodb://"):
        return []  # its hosts are in the DNS
    found = parse_uri(text, validate=False, warn=False)["nodelist"]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found]


def _hello(uri: MongoUri, host: str) -> dict[str, Any] | None:
    """Return the ``hello`` of one host, which needs no login; None if it does not answer."""
    options = [f"{name}={value}" for name, value in uri.parts.options if name.lower() not in _OF_THE_WHOLE]
    alone = f"mongodb://{host}/?{'&'.join(['directConnection=true', *options])}"
    milliseconds = int(_PATIENCE * 1000)
    try:
        with pymongo.MongoClient[dict[str, Any]](
            alone,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
        ) as client:
            return client.admin.command("hello")
    except (mongo_errors.PyMongoError, ValueError, OSError):
        return None


def _why(host: str, wanted: str | None, said: dict[str, Any]) -> str | None:
    name = said.get("setName")
    if name is None and said.get("isreplicaset"):
        return (
            f"the replica set of {host} has not been initiated: do so once, at one of its members: "
            f"mongosh --host {host} --eval 'rs.initiate()'"
        )
    if name is None and wanted is not None and said.get("msg") != "isdbgrid":
        return (
            f"{host} is a stand-alone server, no member of a replica set {wanted!r}: start it with "
            f"--replSet {wanted}, then once: mongosh --host {host} --eval 'rs.initiate()'"
        )
    if name is not None and wanted not in (None, name):
        return f"the replica set of {host} is {name!r}, and the URI names {wanted!r}: write replicaSet={name}"
    members = ", ".join(said.get("hosts", ()))
    if said.get("isWritablePrimary"):
        return (
            f"{host} is the primary, but its replica set calls its members {members}, which this machine "
            "can't reach: let these names lead there, or give the members others (rs.reconfig())"
        )
    if name is not None:
        return (
            f"the replica set {name!r} has no primary: a majority of its members ({members}) must be up and "
            "see each other (rs.status())"
        )
    return None
