"""The list of workers: of as many as fit into an answer, those that the caller may see."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from sluicemq.protocol.rows import WorkerRow, from_document
from sluicemq_broker.admin import QueueAdmin
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Census, Queues, Tasks


class _Queue(NamedTuple):
    """A queue with so many workers."""

    name: str
    workers: int

    def worker_list(self, _most_jobs: int) -> list[WorkerRow]:
        return [from_document(WorkerRow, {"queue": self.name})] * self.workers


class _Census(NamedTuple):
    all: Any = None
    rows: Any = None


def test_workers_that_a_caller_may_not_see_take_no_place_in_its_answer() -> None:
    queues = [_Queue("others", 5000), _Queue("mail", 2)]
    admin = QueueAdmin(
        cast("Queues", cast("list[Queue]", queues)), cast("Census", _Census()), cast("Tasks", None)
    )
    assert [worker.queue for worker in admin.workers(None, lambda name: name == "mail")] == ["mail"] * 2
    assert len(admin.workers(None, lambda _name: True)) == 1000
