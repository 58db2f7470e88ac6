"""Events of jobs at a real broker, and its workers by name."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from typing import Any

import pytest

from sluicemq import NotFoundError, Reject, Worker
from support.own_queue import OwnQueue
from support.waiting import TIMEOUT, wait_until


class Listener:
    """All that is told of one queue."""

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
