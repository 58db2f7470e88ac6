"""How far running jobs are: told by their workers, seen by whoever looks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import pytest

from sluicemq import Job, TimeoutError, Worker
from sluicemq.protocol import wire
from sluicemq_broker.store import Progressed, QueueStore
from support.jobs import NOW, a_job, stored
from support.own_queue import SECONDS, OwnQueue, written
from support.waiting import wait_until


def progress(jobs: OwnQueue, job_id: str) -> Any:
    """As it is shown, without its time."""
    shown = jobs.show(job_id).get("progress")
    return shown and {key: value for key, value in shown.items() if key != "at"}


def refusal(jobs: OwnQueue, job_id: str) -> str:
    """Why there is no result yet."""
    with pytest.raises(TimeoutError) as found:
        jobs.client.jobs.result(jobs.queue, job_id)
    return str(found.value)


def test_what_a_handler_says_last_is_shown_and_told_to_who_asks_for_the_result(jobs: OwnQueue) -> None:
    go_on = threading.Event()

    def handle(job: Job) -> bytes:
        for done in range(1, 8):
            job.progress(done, 10, f"page {done}")
        assert go_on.wait(SECONDS)
        return b"all"

    job_id = jobs.push(b"x", keep_done=60)
    with Worker(jobs.queue, handle, endpoint=jobs.endpoint):
        expected = {"done": 7, "total": 10, "note": "page 7", "attempt": 1}
        wait_until(lambda: progress(jobs, job_id) == expected, what="the newest")
        # A result is told of what a majority has, a moment later
        wait_until(lambda: "has not ended yet (7 of 10, page 7)" in refusal(jobs, job_id), what="the newest")
        go_on.set()
        wait_until(lambda: jobs.state(job_id) == "done")
    assert progress(jobs, job_id) == expected


def removes(change: Mapping[str, Any], job_id: str) -> bool:
    """Return True for the removal of this job."""
    return bool(change["operationType"] == "delete" and change["documentKey"]["_id"] == job_id)


def test_a_thousand_words_are_a_few_statements(jobs: OwnQueue) -> None:
    said = threading.Event()

    def handle(job: Job) -> None:
        for done in range(1000):
            job.progress(done)
        said.set()
        wait_until(lambda: (progress(jobs, job.id) or {}).get("done") == 999)

    with jobs.collection.watch() as changes:
        job_id = jobs.push(b"x")
        with Worker(jobs.queue, handle, endpoint=jobs.endpoint):
            assert said.wait(SECONDS)
            seen = list(takewhile(lambda change: not removes(change, job_id), written(changes)))
    updates = [change.get("updateDescription", {}).get("updatedFields", {}) for change in seen]
    assert 1 <= sum("progress" in update for update in updates) <= 3


def test_of_a_job_that_is_another_workers_nothing_is_noted(jobs: OwnQueue) -> None:
    jobs.push(b"x", visibility_timeout=0.5, max_attempts=9)
    worker, job = jobs.stranger()
    receipt, job_id = job[0], job[1]
    assert worker.ask(wire.PROGRESS, [[receipt, 1, 4, None]]).fields == [[]]
    wait_until(lambda: progress(jobs, job_id) == {"done": 1, "total": 4, "attempt": 1})
    wait_until(lambda: worker.ask(wire.PROGRESS, [[receipt, 2, 4, None]]).fields != [[]], SECONDS)
    (problem,) = worker.ask(wire.PROGRESS, [[receipt, 2, 4, None]]).fields[0]
    assert problem[:2] == [0, "LEASE_LOST"]


def test_a_claimed_job_tells_it_too(jobs: OwnQueue) -> None:
    job_id = jobs.push(b"x")
    job = jobs.take()
    job.progress(0.5, note="half")
    wait_until(lambda: progress(jobs, job_id) == {"done": 0.5, "note": "half", "attempt": 1})
    job.commit()


@pytest.mark.parametrize(
    "entry", [[b"r"], [b"r", "1", None, None], [b"r", 1, None, 7], [b"r", 2**60, None, None], "r"]
)
def test_what_is_no_progress_is_refused(jobs: OwnQueue, entry: Any) -> None:
    answer = jobs.broker.smq().ask(wire.PROGRESS, [entry])
    assert (answer.verb, answer.fields[0]) == (wire.ERROR, "BAD_FRAMES")


def test_it_is_fenced_by_the_hold(store: QueueStore) -> None:
    store.push([a_job("a"), a_job("b")], NOW)
    first, second = store.reserve(2, NOW, "worker", 1).jobs
    store.release([first])
    again = store.reserve(1, NOW, "worker", 2).jobs[0]
    told = [Progressed(job, 1, None, "", NOW) for job in (first, second)]
    assert store.note_progress(told) == 1
    assert "progress" not in stored(store, again.id)
    assert stored(store, "b")["progress"]["done"] == 1
