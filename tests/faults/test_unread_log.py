"""A broker whose log nobody reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from support.broker_process import BrokerProcess

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full


class Unheard(BrokerProcess):
    """Its stdout and stderr are a pipe that is full from the start, and that nobody reads."""

    def __init__(self, mongodb_uri: str, database: str, folder: Path) -> None:
        super().__init__(mongodb_uri, database, folder=folder)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        try:
            while True:
                os.write(self._pipe[1], bytes(4096))
        except BlockingIOError:
            os.set_blocking(self._pipe[1], True)

    @property
    def _log_file(self) -> Path:
        return Path(f"/proc/self/fd/{self._pipe[1]}")

    def log_text(self) -> str:
        return ""

    def close(self) -> None:
        super().close()
        for end in self._pipe:
            os.close(end)


def test_a_broker_with_an_unread_log_serves_and_stops(mongo_uri: str, database: str, tmp_path: Path) -> None:
    with Unheard(mongo_uri, database, tmp_path) as broker, zmq.Context() as context:
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        push.connect(broker.doors["push"])
        pull.connect(broker.doors["pull"])
        # When there is much to be said, and then a job
        for _ in range(500):  # with 2,000 it would be cut, and the job be lost with its connection
            push.send_multipart([b"no such queue", b"no headers", b"payload"])
        push.send(b"job")
        assert pull.poll(60_000)
        assert pull.recv() == b"job"
        context.destroy(linger=0)
        assert broker.terminate() == 0
