"""Progress, events and answers of jobs, here and of other brokers."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import pytest
import zmq

from sluicemq import Client, Job, NotFoundError, Reject, TimeoutError, Worker
from sluicemq.protocol import wire
from sluicemq_broker.store import Progressed, QueueStore
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.jobs import NOW, a_job, stored
from support.own_queue import SECONDS, OwnQueue, written
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until


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


class Listener:
    def __init__(self, jobs: OwnQueue) -> None:
        self._jobs = jobs
        self._after = jobs.client.events(jobs.queue)["after"]
        self.came: list[dict[str, Any]] = []

    def hear(self, event: str, job: str = "") -> dict[str, Any]:
        """The first event of this kind, of this job or any, when it has come."""

        def found() -> dict[str, Any] | None:
            told = self._jobs.client.events(self._jobs.queue, self._after)
            self._after = told["after"]
            self.came += told["events"]
            return next(
                (row for row in self.came if row["event"] == event and job in ("", row.get("job"))), None
            )

        heard: dict[str, Any] = wait_until(found, what=event)
        return heard


def test_a_job_is_told_from_its_push_to_its_commit(jobs: OwnQueue) -> None:
    listener = Listener(jobs)
    jobs.push(id="one")
    with jobs.reserve(1):
        delivered = listener.hear("delivered")
    assert listener.hear("pushed")["job"] == "one"
    assert delivered | {"at": 0, "worker": ""} == {
        "at": 0, "event": "delivered", "queue": jobs.queue, "job": "one", "attempt": 1, "worker": "",
    }  # fmt: skip
    assert f"{socket.gethostname()}:{os.getpid()}" in delivered["worker"]


def test_a_commit_a_rollback_and_a_death_are_told_with_their_reasons(jobs: OwnQueue) -> None:
    listener = Listener(jobs)

    def handler(job: Any) -> None:
        if job.payload == b"bad":
            raise Reject("no such address")
        if job.payload == b"again" and job.attempt == 1:
            raise ValueError("not now")

    with Worker(jobs.queue, handler, endpoint=jobs.endpoint):
        jobs.push(b"good", id="good")
        jobs.push(b"bad", id="bad")
        jobs.push(b"again", id="again")
        dead, back = (listener.hear(name) for name in ("dead", "rolled_back"))
        listener.hear("committed", "good")
        listener.hear("committed", "again")
    assert (dead["job"], dead["reason"]) == ("bad", "no such address")
    assert (back["job"], back["attempt"], "not now" in back["reason"]) == ("again", 1, True)


def test_cancelled_expired_purged_and_redriven_jobs_are_told(jobs: OwnQueue) -> None:
    listener = Listener(jobs)
    jobs.push(id="c", delay=1000)
    jobs.client.jobs.cancel(jobs.queue, "c")
    assert listener.hear("cancelled")["job"] == "c"
    jobs.push(id="e", ttl=0.05)
    assert listener.hear("expired")["job"] == "e"
    jobs.push(id="p", delay=1000)
    jobs.client.queues.purge(jobs.queue, "scheduled").result()
    assert listener.hear("purged") | {"at": 0} == {
        "at": 0, "event": "purged", "queue": jobs.queue, "jobs": 1, "state": "scheduled",
    }  # fmt: skip


def test_the_command_prints_them_as_lines(jobs: OwnQueue) -> None:
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", jobs.endpoint]
    listening = [*command, "events", "--queue", jobs.queue, "--follow"]
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            out = process.stdout
            # Whether it listens already can't be seen from outside: so jobs come until one is heard.
            wait_until(lambda: jobs.push() and select.select([out], [], [], 0.1)[0], what="an event")
            line = json.loads(out.readline())
        finally:
            process.kill()
    assert (line["event"], line["queue"]) == ("pushed", jobs.queue)


def test_workers_are_named_by_their_own_name_host_and_pid(jobs: OwnQueue) -> None:
    jobs.push(id="busy")
    with jobs.reserve(1):
        (worker,) = jobs.client.workers(jobs.queue)
    assert worker["name"].endswith(f" {socket.gethostname()}:{os.getpid()}")
    assert (worker["door"], worker["in_flight"], worker["jobs"][0]["id"]) == ("library", 1, "busy")
    assert 0 <= worker["connected"] < TIMEOUT


def test_workers_of_a_queue_that_is_not_there_are_not_found(jobs: OwnQueue) -> None:
    with pytest.raises(NotFoundError):
        jobs.client.workers.list("no-such-queue")


DEVICES = [
    {"kind": "queue", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "streamer", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
]


@pytest.fixture
def plain() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.connect(address)
    return socket


def two_brokers(mongo_uri: str, database: str) -> tuple[BrokerProcess, BrokerProcess]:
    config = {"devices": DEVICES, "broker": {"lease": 5.0}}
    first, second = (BrokerProcess(mongo_uri, database, config=config) for _ in range(2))
    return first, second


def test_a_question_without_an_id_is_answered_by_a_worker_at_another_broker(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first, second:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        worker = connected(plain, zmq.REP, second.doors["rep"])
        for number in range(3):
            asker.send(b"question %d" % number)
            assert receive(worker) == [b"question %d" % number]
            worker.send(b"answer %d" % number)
            assert receive(asker) == [b"answer %d" % number]


def test_so_it_is_when_the_other_broker_comes_after_the_question_was_asked(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        asker.send(b"question")
        with Client(endpoint=first.doors["smq"]) as client:
            wait_until(lambda: client.queues() and client.queues.list()[0].ready == 1)
        with second:
            worker = connected(plain, zmq.REP, second.doors["rep"])
            assert receive(worker) == [b"question"]
            worker.send(b"answer")
            assert receive(asker) == [b"answer"]


def test_a_question_that_a_pull_worker_elsewhere_took_is_answered(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first, second:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        worker = connected(plain, zmq.PULL, second.doors["pull"])
        asker.send(b"question")
        assert receive(worker) == [b"question"]
        assert receive(asker) == [b""]
