"""A bad day, replayed at a broker: ``python tools/bad_day.py --endpoint tcp://HOST:PORT``, until Ctrl-C.

A poisoned kind fails everywhere; a wrong deploy fails one kind at two of three workers; a handler hangs; a
tenant floods a queue. ``docs/bad-day.md`` has the questions of an operator, and how each is answered.
"""

from __future__ import annotations

import argparse
import json
import threading
from contextlib import ExitStack
from typing import Final, Self

from sluicemq import Client, Job, Producer, Worker

#: Jobs of each kind, and of the tenant that floods.
SOME: Final = 24
FLOOD: Final = 300
#: Settings of the queues: time is short, so that the day is.
SETTINGS: Final = {
    "orders": {"max_attempts": 1},
    "images": {"visibility_timeout": 1, "max_attempts": 1},
    "mail": {"fair": True, "tenant_max_running": 2},
}


def parse_import(job: Job) -> bytes:
    """Work on the poisoned kind: half of its payloads are no JSON."""
    return json.dumps(job.json()).encode()


def render_invoice(invoice: dict[str, int]) -> bytes:
    """Render what the new version expects, and no producer sends yet."""
    return b"%d" % invoice["vat"]


class BadDay:
    """Producers and workers of the day; a worker is named after the host where it would run."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._open = ExitStack()
        self.is_over = threading.Event()
        """Ends the handlers that hang."""
        self.is_mended = False
        """True once the deploy is taken back, and imports are read with their mistakes."""
        self.workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        with Client(endpoint=self._endpoint) as client, Producer(endpoint=self._endpoint) as producer:
            self._push_all(producer)
            producer.flush()
            for queue, settings in SETTINGS.items():
                client.queues.set_settings(queue, settings)
        for host in ("web-1", "web-2", "web-3"):
            self._work("orders", host)
        self._work("images", "img-1")
        self._work("mail", "mail-1", concurrency=4)
        return self

    def __exit__(self, *_error: object) -> None:
        self.is_over.set()
        self._open.close()

    def _push_all(self, producer: Producer) -> None:
        def push(queue: str, kind: str, number: int, payload: bytes, tenant: str) -> None:
            job_id, headers = f"{kind}-{number}", {"kind": kind}
            producer.push(queue, payload, id=job_id, tenant=tenant, headers=headers)

        for number in range(SOME):
            tenant = "acme" if number % 3 else "bolt"
            payloads = {"import": b"{" if number % 2 else b"{}", "receipt": b"{}", "invoice": b'{"net": 100}'}
            turns = [*payloads, *payloads][number % 3 :][:3]  # each worker has some of each kind
            for kind in turns:
                push("orders", kind, number, payloads[kind], tenant)
        for number in range(3):
            push("images", "thumbnail", number, b"cat.jpg", "bolt")
        for number in range(FLOOD):
            push("mail", "news", number, b"news", "acme")

    def _work(self, queue: str, host: str, concurrency: int = 1) -> None:
        def handle(job: Job) -> bytes | None:
            return self._handle(host, job)

        worker = Worker(
            queue, handle, name=host, concurrency=concurrency, stop_timeout=0, endpoint=self._endpoint
        )
        self.workers[host] = self._open.enter_context(worker)

    def _handle(self, host: str, job: Job) -> bytes | None:
        if job.queue != "orders":
            self._hang(job)
            return None
        kind = str(job.headers["kind"])
        if kind == "invoice" and host != "web-1" and not self.is_mended:
            return render_invoice(job.json())
        if kind == "import" and not self.is_mended:
            return parse_import(job)
        return b"done"

    def _hang(self, job: Job) -> None:
        """Hang, as a thumbnail does whatever happens; a mail ends if it is cancelled."""
        while not self.is_over.wait(0.05):
            if job.queue == "mail":
                job.check()


def main() -> None:
    """Replay the day."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:5550")
    with BadDay(parser.parse_args().endpoint) as day:
        print("the day goes on until Ctrl-C")
        day.is_over.wait()


if __name__ == "__main__":
    main()
