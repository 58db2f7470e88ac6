"""Makes a replica set of the members of a URI, and its users; a second run changes no more than a password.

    python3 replica_set.py MONGODB_URI_FILE ADMIN_PASSWORD_FILE [PORT]

The URI names the members, the set, and the broker's user with its password. There is an administrator, too,
with the name "admin". This runs in the network of the first member: MongoDB lets in its own host without a
password as long as it has no users.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

TIMEOUT = 120.0  # seconds for an election among members that have just been started
DATABASE = "sluicemq"
AUTHENTICATION_FAILED = 18
USER_NOT_FOUND = 11
#: What docs/security.md says that the broker's user needs.
ROLES = [{"role": "readWrite", "db": DATABASE}, {"role": "clusterMonitor", "db": "admin"}]


def main(uri_file: str, password_file: str, port: str = "27017") -> None:
    """Make what is not there yet."""
    uri = Path(uri_file).read_text().strip()
    wanted = parse_uri(uri)
    members = [f"{host}:{number}" for host, number in wanted["nodelist"]]
    name = wanted["options"]["replicaSet"]
    password = Path(password_file).read_text().strip()
    with MongoClient[dict[str, Any]]("localhost", int(port), directConnection=True) as first:
        initiate(first, name, members)
        with MongoClient[dict[str, Any]](
            members, replicaSet=name, username="admin", password=password
        ) as administrator:
            if not is_let_in(administrator):
                add_administrator(first, password)
            give_user(administrator, wanted["username"], wanted["password"])
    with MongoClient[dict[str, Any]](uri) as broker:
        broker[DATABASE].command("ping")
    say(f"the replica set {name} is there: {', '.join(members)}")


def initiate(first: MongoClient[dict[str, Any]], name: str, members: list[str]) -> None:
    """Make the replica set, unless it is one, and wait for its primary."""
    if "setName" not in first.admin.command("hello"):
        say(f"making the replica set {name}")
        # The first one is to be primary: only there it lets us in without a password.
        configured = [
            {"_id": number, "host": host, "priority": 1 if number else 2}
            for number, host in enumerate(members)
        ]
        first.admin.command("replSetInitiate", {"_id": name, "members": configured})
    wait_for(first, "primary")


def add_administrator(first: MongoClient[dict[str, Any]], password: str) -> None:
    """Add the first user, at the primary."""
    wait_for(first, "isWritablePrimary")
    first.admin.command("createUser", "admin", pwd=password, roles=["root"])
    say("made the user admin")


def is_let_in(administrator: MongoClient[dict[str, Any]]) -> bool:
    """Return False if there is no such user yet."""
    try:
        administrator.admin.command("ping")
    except OperationFailure as error:
        if error.code != AUTHENTICATION_FAILED:
            raise
        return False
    return True


def give_user(administrator: MongoClient[dict[str, Any]], user: str, password: str) -> None:
    """Let the broker in with the password of the URI."""
    majority = {"w": "majority", "wtimeout": int(TIMEOUT * 1000)}
    fields = {"pwd": password, "roles": ROLES, "writeConcern": majority}
    try:
        administrator.admin.command("updateUser", user, **fields)
    except OperationFailure as error:
        if error.code != USER_NOT_FOUND:
            raise
        administrator.admin.command("createUser", user, **fields)
        say(f"made the user {user}")


def wait_for(first: MongoClient[dict[str, Any]], field: str) -> None:
    """Wait until the first member says this of itself."""
    end = time.monotonic() + TIMEOUT
    while not first.admin.command("hello").get(field):
        if time.monotonic() > end:
            sys.exit(f"replica_set.py: no {field} within {TIMEOUT:.0f} s: look at the logs of the members")
        time.sleep(0.2)


def say(text: str) -> None:
    """Write a line of progress."""
    sys.stderr.write(f"replica_set.py: {text}\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PyMongoError as error:
        sys.exit(f"replica_set.py: {error}")
