"""A mongod of a test's own, with any options, that is no replica set yet."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluicemq_broker.embedded import mongod
from support.ports import free_port
from support.waiting import wait_until


@contextmanager
def a_mongod(folder: Path, *options: str) -> Iterator[int]:
    """A mongod of the test's own; its port."""
    port, log = free_port(), folder / "mongod.log"
    (folder / "db").mkdir()
    command = [str(mongod.find_mongod()), "--dbpath", str(folder / "db"), "--port", str(port)]
    command += ["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", *options]
    process = mongod.launch(command, log)
    try:
        wait_until(lambda: process.poll() is not None or _listens(port), what="a mongod")
        assert process.poll() is None, log.read_text()[-2000:]
        yield port
    finally:
        mongod.end(process, 10.0)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
