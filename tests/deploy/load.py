"""A producer and a worker that go on while a broker is upgraded."""

import threading
from typing import Self

from sluicemq import Producer, SluiceError, Worker
from support.waiting import TIMEOUT, wait_until


class Load:
    """A producer and a worker at the broker, which count what goes wrong."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.errors: list[str] = []
        self.pushed = 0
        self.done: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push)

    def __enter__(self) -> Self:
        self._worker = Worker("load", lambda job: self.done.append(int(job.payload)), endpoint=self.endpoint)
        self._worker.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._worker.__exit__(None, None, None)

    def _push(self) -> None:
        with Producer(endpoint=self.endpoint) as producer:
            while not self._ended.is_set():
                try:
                    producer.push("load", str(self.pushed).encode()).wait(5 * TIMEOUT)
                    self.pushed += 1
                except SluiceError as error:
                    self.errors.append(str(error))
                self._ended.wait(0.01)


def await_more(load: Load) -> None:
    before = len(load.done)
    wait_until(lambda: len(load.done) > before + 10, 5 * TIMEOUT, "more jobs done")
