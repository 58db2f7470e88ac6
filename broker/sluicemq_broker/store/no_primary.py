"""Diagnosis of a missing primary: each host of the URI is asked for its state, and the cure is named.

The driver has one sentence for all causes, "no replica set members found yet".
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import pymongo
from pymongo import errors as mongo_errors
from pymongo.uri_parser import parse_uri

from sluicemq_broker.config import LOGIN_OPTIONS, MongoUri
from sluicemq_broker.store.errors import ServerCode, brief
from sluicemq_broker.store.no_tls import why_no_tls

#: Options that describe the replica set, not how to reach one host of it.
_OF_THE_WHOLE: Final = frozenset({"replicaset", "directconnection", "loadbalanced"})


def why_no_primary(text: str) -> str | None:
    """Return what is wrong with the hosts of a URI and what to do, as they say; None if they don't say.

    A member that has just started says that its replica set has not been initiated, until it has read its
    configuration. So that counts only where no other host says more.
    """
    uri = MongoUri.read(text)
    not_initiated = None
    for host in _hosts(text)[:5]:
        said = _hello(uri, host)
        why = _what_it_says(uri, host, said)
        if why and not _says_not_initiated(said):
            return why
        not_initiated = not_initiated or why
    return not_initiated


def _says_not_initiated(said: dict[str, Any] | Exception) -> bool:
    return isinstance(said, dict) and "setName" not in said and bool(said.get("isreplicaset"))


def _what_it_says(uri: MongoUri, host: str, said: dict[str, Any] | Exception) -> str | None:
    if isinstance(said, Exception):
        return why_no_tls(uri, host, said)
    refused = _why_no_login(uri, host) if said.get("isWritablePrimary") else None
    wanted = next((value for name, value in uri.parts.options if name.lower() == "replicaset"), None)
    return refused or _why(host, wanted, said)


def _hosts(text: str) -> list[str]:
    if not text.startswith("mongodb://"):
        return []  # its hosts are in the DNS
    found = parse_uri(text, validate=False, warn=False)["nodelist"]
    return [_host(*place) for place in found]


def _host(host: str, port: int | None) -> str:
    """Return a host as a URI has it; a Unix socket has no port."""
    if port is None:
        return quote(host, safe="")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hello(uri: MongoUri, host: str) -> dict[str, Any] | Exception:
    """Return the ``hello`` of one host, which needs no login; the error if it does not answer."""
    try:
        with _client(uri, host, "", _OF_THE_WHOLE | LOGIN_OPTIONS) as client:
            return client.admin.command("hello")
    except (mongo_errors.PyMongoError, ValueError, OSError) as error:
        return error


def _why_no_login(uri: MongoUri, host: str) -> str | None:
    """Return that a host which answers refuses the user of the URI."""
    parts = uri.parts
    password = "" if parts.password is None else f":{parts.password}"
    login = "" if parts.user is None else f"{parts.user}{password}@"
    try:
        with _client(uri, host, login, _OF_THE_WHOLE) as client:
            client.admin.command("ping")
    except mongo_errors.OperationFailure as error:
        if error.code != ServerCode.AUTHENTICATION_FAILED:
            return None
        who = "the certificate of the URI" if parts.user is None else f"user {parts.user} of the URI"
        return (
            f"MongoDB refuses {who} ({brief(error)}): look at its password, at authSource, the database in "
            "which the user was made, and at authMechanism"
        )
    except (mongo_errors.PyMongoError, ValueError, OSError):
        pass
    return None


def _client(
    uri: MongoUri, host: str, login: str, left_out: frozenset[str]
) -> pymongo.MongoClient[dict[str, Any]]:
    """Return a client of one host, with a login or without, that waits for a short time."""
    options = [f"{name}={value}" for name, value in uri.parts.options if name.lower() not in left_out]
    database = uri.parts.database or "" if login else ""
    milliseconds = 2000  # for one host
    return pymongo.MongoClient(
        f"mongodb://{login}{host}/{database}?{'&'.join(['directConnection=true', *options])}",
        serverSelectionTimeoutMS=milliseconds,
        connectTimeoutMS=milliseconds,
        socketTimeoutMS=milliseconds,
    )


def _why(host: str, wanted: str | None, said: dict[str, Any]) -> str | None:
    name = said.get("setName")
    if _says_not_initiated(said):
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
