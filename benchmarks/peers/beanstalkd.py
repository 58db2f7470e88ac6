"""beanstalkd, its binlog synced at each write. No client pipelines, so this one speaks the protocol."""

import os
import socket
from typing import BinaryIO

from worker import BATCH, Run, main

PIPELINE = 100
ADDRESS = ("127.0.0.1", int(os.environ["PORT"]))


class Connection:
    """One connection, on the tube of the bench."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(ADDRESS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies: BinaryIO = self._socket.makefile("rb", 1 << 20)
        for command in (b"use bench", b"watch bench", b"ignore default"):
            self.send(command + b"\r\n")
            self.reply()

    def send(self, commands: bytes) -> None:
        self._socket.sendall(commands)

    def reply(self) -> list[bytes]:
        return self._replies.readline().split()

    def put(self, payloads: list[bytes]) -> None:
        self.send(b"".join(b"put 1000 0 60 %d\r\n%s\r\n" % (len(payload), payload) for payload in payloads))
        for _ in payloads:
            _expect(self.reply(), b"INSERTED")

    def reserve(self, most: int, patience: int) -> list[tuple[bytes, bytes]]:
        """Wait for one job, then take what else is there."""
        self.send(b"reserve-with-timeout %d\r\n" % patience + b"reserve-with-timeout 0\r\n" * (most - 1))
        replies = [self._reserved() for _ in range(most)]
        return [reply for reply in replies if reply]

    def delete(self, ids: list[bytes]) -> None:
        self.send(b"".join(b"delete %s\r\n" % job_id for job_id in ids))
        for _ in ids:
            _expect(self.reply(), b"DELETED")

    def _reserved(self) -> tuple[bytes, bytes] | None:
        words = self.reply()
        if words[0] != b"RESERVED":
            return None
        return words[1], self._replies.read(int(words[2]) + 2)


def reset(_run: Run) -> None:
    connection = Connection()
    while found := connection.reserve(BATCH, 0):
        connection.delete([row[0] for row in found])


def push_one(run: Run) -> None:
    connection = Connection()
    run.go()
    for payload in run.payloads():
        connection.put([payload])


def push(run: Run) -> None:
    connection = Connection()
    run.go()
    for batch in run.batches(PIPELINE):
        connection.put(batch)


def work(run: Run) -> None:
    connection = Connection()
    run.go()
    # On an idle queue a pipeline would wait for the first job only; so one is reserved, then many.
    most = 1
    while run.left > 0:
        found = connection.reserve(min(most, run.left), 1)
        for _id, payload in found:
            run.took(payload)
        connection.delete([row[0] for row in found])
        run.done += len(found)
        most = PIPELINE if len(found) == most else 1


def _expect(words: list[bytes], word: bytes) -> None:
    if words[:1] != [word]:
        raise SystemExit(f"beanstalkd answered {words}, not {word.decode()}")


main(reset=reset, push_one=push_one, push=push, work=work)
