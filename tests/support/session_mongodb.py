"""The real MongoDB of a session of tests: one for all of its processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

#: The variable that names the one to use, if it is not to be a new one. Not SLUICEMQ_: brokers know those.
GIVEN: Final = "TEST_MONGODB_URI"

# The launcher owns mongod: it is a process of its own, so it does not matter whether this one is
# monkey-patched, and when this one is killed, its stdin closes and it ends. A session of its own:
# Ctrl-C must not take it away before the fixtures that still need it.
_STORE = """
import shutil, sys
from pathlib import Path
from sluicemq_broker.embedded.life import EmbeddedMongo
from pymongo import MongoClient
store = EmbeddedMongo(Path(sys.argv[1]))
try:
    uri = store.start()
    with MongoClient(uri) as client:  # dropping a database waits for the journal: 30 ms, not 100
        client.admin.command({"setParameter": 1, "journalCommitInterval": 30})
    print(uri, flush=True)
    sys.stdin.read()
finally:
    store.stop()
shutil.rmtree(sys.argv[1], ignore_errors=True)  # where it has not started, its log is still wanted
"""

#: A file system in memory, for a session's MongoDB: what is written a thousand times a minute and kept for
#: no longer than the session needs no disk, which takes a quarter of its CPU and half of the waiting for it.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108
#: Bytes that must be free there, and stay free: it takes about one gigabyte.
_ROOM = 4 * 2**30


@contextmanager
def session_mongodb() -> Iterator[str]:
    """The URI of a single-node replica set that ends with this; or of the one that is given."""
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    folder = _new_folder()
    program = [sys.executable, "-c", _STORE, str(folder)]
    with tempfile.TemporaryFile("w+") as said:
        pipe = subprocess.PIPE
        store = subprocess.Popen(
            program, stdin=pipe, stdout=pipe, stderr=said, text=True, start_new_session=True
        )
        try:
            yield _uri_of(store, folder)
        finally:
            _end(store)
            _show(said)


def _new_folder() -> Path:
    """In memory, if there is room."""
    quick = os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free > _ROOM
    return Path(tempfile.mkdtemp(prefix="sluicemq-test-", dir=_IN_MEMORY if quick else None))


def _uri_of(store: subprocess.Popen[str], folder: Path) -> str:
    assert store.stdout
    uri = store.stdout.readline().strip()
    assert uri, f"the tests' MongoDB did not start; its log is in {folder}"
    return uri


def _end(store: subprocess.Popen[str]) -> None:
    try:
        store.communicate(timeout=30)  # closes its stdin
    finally:
        store.kill()
        store.wait()


def _show(said: IO[str]) -> None:
    """Print, behind the tests, if their MongoDB ended meanwhile, and why: tests fail of that."""
    said.seek(0)
    for line in said:
        print(f"the tests' MongoDB: {line.rstrip()}", file=sys.stderr)
