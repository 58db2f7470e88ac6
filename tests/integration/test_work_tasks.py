"""``sluicemq work app:tasks``: its processes run tasks, end in order, and are replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from sluicemq import App, DeadError
from support.broker_process import BrokerProcess
from support.ports import free_port, tcp
from support.waiting import TIMEOUT, wait_until

PROGRAM = """
import logging, os, pathlib, signal, time
from sluicemq import App, Job

app = App()

@app.task(queue="work")
def add(a: int, b: int) -> int:
    logging.getLogger("shop").info("adding")
    return a + b

@app.task(queue="work")
def pid() -> int:
    return os.getpid()

@app.task(queue="work", bind=True)
def crash(job: Job) -> int:
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.attempt

@app.task(queue="work")
def hangs() -> None:
    time.sleep(600)  # no exception ends it

@app.task(queue="work")
def slow(folder: str) -> str:
    pathlib.Path(folder, "began").touch()
    while not pathlib.Path(folder, "go").exists():
        time.sleep(0.01)
    return "finished"
"""

#: Beside the tasks above, one that waits until ``count`` of it run: now all run with an event loop.
WITH_COROUTINES = (
    PROGRAM
    + """
import asyncio, threading

met, all_met = [], asyncio.Event()

@app.task(queue="work")
async def meet(count: int) -> int:
    met.append(1)
    if len(met) == count:
        all_met.set()
    await all_met.wait()
    return threading.active_count()
"""
)


@pytest.fixture(scope="module")
def endpoint(mongo_uri: str) -> Iterator[str]:
    with BrokerProcess(
        mongo_uri, f"tasks-{free_port()}", config={"devices": [], "queues": {"*": {"backoff": "none"}}}
    ) as broker:
        yield broker.doors["smq"]


class Work:
    """The command in a folder of its own, with a client of its tasks."""

    def __init__(self, folder: Path, endpoint: str, *arguments: str, program: str = PROGRAM) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(program)
        self.log = folder / "log"
        command = [
            sys.executable,
            "-m",
            "sluicemq.cli",
            "--endpoint",
            endpoint,
            "work",
            "tasks:app",
            *arguments,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stderr=log)
        self.app = App(endpoint=endpoint)

    def call(self, kind: str, **arguments: Any) -> Any:
        reply = self.push(kind, **arguments)
        return json.loads(reply.result(TIMEOUT))

    def push(self, kind: str, **arguments: Any) -> Any:
        return self.app.get_producer().submit_value("work", arguments, headers={"kind": kind})

    def pids(self) -> list[int]:
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        return []

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.app.close()
        if self.process.poll() is None:
            self.stop()
        print(self.log.read_text())


def test_processes_run_tasks_and_say_how_they_are(tmp_path: Path, endpoint: str) -> None:
    port = tcp().rpartition(":")[2]
    with Work(tmp_path, endpoint, "--processes", "2", "--queues", "work=3,other", "--health", port) as work:
        assert work.call("add", a=1, b=2) == 3
        assert re.search(r"INFO shop: \[add [0-9a-f]+\] adding", work.log.read_text())
        assert re.search(r"INFO sluicemq.work: \[add [0-9a-f]+\] done", work.log.read_text())

        def healthy() -> dict[str, Any] | None:
            with suppress(URLError), closing(urlopen(f"http://127.0.0.1:{port}/")) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
            return None

        wait_until(lambda: (found := healthy()) and sum(row["done"] for row in found["processes"]) == 1)
        assert [row["pid"] for row in (healthy() or {})["processes"]] == work.pids()
        # And
        pids = work.pids()
        assert work.stop() == 0
        assert not any(map(psutil.pid_exists, pids))


def test_a_task_is_run_again_whose_process_was_killed(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint) as work:
        assert work.call("crash") == 2
        assert "a process ended by signal 9" in work.log.read_text()


def test_a_stop_waits_for_the_tasks_that_have_begun(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint) as work:
        reply = work.push("slow", folder=str(tmp_path))
        wait_until((tmp_path / "began").exists)
        work.process.terminate()
        (tmp_path / "go").touch()
        assert json.loads(reply.result(TIMEOUT)) == "finished"
        assert work.process.wait(TIMEOUT) == 0


def test_coroutines_wait_in_one_loop_and_are_waited_for_at_the_stop(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint, "--concurrency", "50", program=WITH_COROUTINES) as work:
        replies = [work.push("meet", count=50) for _ in range(50)]
        assert {int(reply.result(TIMEOUT)) < 20 for reply in replies} == {True}
        reply = work.push("slow", folder=str(tmp_path))
        wait_until((tmp_path / "began").exists)
        work.process.terminate()
        (tmp_path / "go").touch()
        assert json.loads(reply.result(TIMEOUT)) == "finished"
        assert work.process.wait(TIMEOUT) == 0


@pytest.mark.parametrize("program", [PROGRAM, WITH_COROUTINES], ids=["threads", "loop"])
def test_a_process_ends_after_so_many_jobs(tmp_path: Path, endpoint: str, program: str) -> None:
    with Work(tmp_path, endpoint, "--max-jobs", "2", program=program) as work:
        pids = [work.call("pid") for _ in range(4)]
        assert [pids.count(pid) for pid in sorted(set(pids), key=pids.index)] == [2, 2]
        assert "it has done 2 jobs" in work.log.read_text()


@pytest.mark.full  # a handler has five seconds to end
@pytest.mark.parametrize("program", [PROGRAM, WITH_COROUTINES], ids=["threads", "loop"])
def test_a_process_past_its_hard_limit_is_replaced(tmp_path: Path, endpoint: str, program: str) -> None:
    with Work(tmp_path, endpoint, program=program) as work:
        first = work.call("pid")
        with pytest.raises(DeadError, match=r"hard_time_limit of 0\.1 s passed"):
            work.app.get_producer().submit_value(
                "work", {}, headers={"kind": "hangs"}, hard_time_limit=0.1, max_attempts=1
            ).result(TIMEOUT)
        wait_until(lambda: work.pids() and work.pids() != [first])
        assert "does not end, 5 s after its hard_time_limit of 0.1 s: its worker ends" in work.log.read_text()
        assert work.call("add", a=1, b=2) == 3


def test_a_process_ends_that_has_too_much_memory(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint, "--max-memory", "1M") as work:
        first = work.call("pid")
        wait_until(lambda: work.pids() and work.pids() != [first])
        assert re.search(r"it uses \d+ MiB of memory", work.log.read_text())


def test_a_file_that_changes_brings_new_processes(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint, "--reload") as work:
        # Given: a file that can't be loaded is waited for
        assert work.call("add", a=2, b=3) == 5
        before = work.pids()
        (tmp_path / "tasks.py").write_text("1 /")
        wait_until(lambda: "can't be loaded" in work.log.read_text())
        (tmp_path / "tasks.py").write_text(PROGRAM.replace("a + b", "a * b"))
        assert work.call("add", a=2, b=3) == 6
        assert not set(before) & set(work.pids())


def test_processes_end_with_their_supervisor(tmp_path: Path, endpoint: str) -> None:
    with Work(tmp_path, endpoint) as work:
        assert work.call("add", a=1, b=2) == 3
        pids = work.pids()
        os.kill(work.process.pid, signal.SIGKILL)
        work.process.wait(TIMEOUT)
        wait_until(lambda: not any(map(psutil.pid_exists, pids)))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import nothing_here", "No module named 'nothing_here'"),
        ("app = 3", "tasks:app is no App: write module:name"),
        (
            "from sluicemq import App\napp = App()\n@app.task\ndef one(a: 'Nothing'): pass",
            "task one: name 'Nothing' is not defined",
        ),
    ],
)
def test_an_app_that_fails_to_load_ends_it(tmp_path: Path, endpoint: str, program: str, why: str) -> None:
    with Work(tmp_path, endpoint, "--processes", "2", program=program) as work:
        assert work.process.wait(TIMEOUT) == 1
        assert why in work.log.read_text()
