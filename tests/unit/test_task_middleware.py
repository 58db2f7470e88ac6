"""Time limits, Sentry and OpenTelemetry around a run of a task."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluicemq import (
    App,
    Job,
    Middleware,
    Reject,
    Retry,
    Sentry,
    TaskRun,
    TaskTimeoutError,
    Telemetry,
    TimeLimits,
)
from support.traces import Traced
from support.waiting import TIMEOUT

SHORT = 0.05


def handled(app: App, kind: str) -> bytes | object:
    return app.handler(Job(b"{}", headers={"kind": kind}))


def slow_tasks() -> App:
    app = App()

    @app.task(timeout=SHORT)
    def thread() -> None:
        pause = threading.Event()
        for _ in range(int(TIMEOUT / 0.01)):
            pause.wait(0.01)

    @app.task(timeout=SHORT)
    async def coroutine() -> None:
        await asyncio.get_running_loop().create_future()

    @app.task(timeout=SHORT)
    def cleans_up() -> str:
        try:
            thread()
        except TaskTimeoutError:
            return "cleaned"
        return "slept"

    @app.task(timeout=TIMEOUT)
    def quick() -> int:
        return 7

    return app


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_run_that_takes_too_long_gets_an_exception(kind: str) -> None:
    with pytest.raises(TaskTimeoutError, match=rf"{kind} ran for longer than 0.05 s"):
        handled(slow_tasks(), kind)


def test_a_function_may_clean_up_after_its_time_out() -> None:
    assert handled(slow_tasks(), "cleans_up") == b'"cleaned"'


def test_a_run_within_its_time_is_left_alone() -> None:
    app = slow_tasks()
    assert [handled(app, "quick") for _ in range(100)] == [b"7"] * 100


def test_the_time_out_of_a_push_counts_before_that_of_the_task() -> None:
    app = App()

    @app.task(timeout=TIMEOUT)
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(TaskTimeoutError, match=r"longer than 0.02 s"):
        app.handler(Job(b"{}", headers={"kind": "wait", "timeout": 0.02}))


PROGRAM = """
import time
from sluicemq import App, Job, TimeLimits

app = App(middleware=[TimeLimits(hard=0.05)])

@app.task(timeout=0.05)
def stuck():
    time.sleep(60)  # in C: no exception ends it

app.handler(Job(b"{}", headers={"kind": "stuck"}))
"""


def test_a_hard_limit_ends_the_process() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 70
    assert "job id of queue queue (stuck) did not end 0.05 s after its time-out" in done.stderr


@pytest.mark.parametrize("hard", [0, -1, 10, "1h", "soon"])
def test_a_hard_limit_lies_before_the_time_at_which_others_get_the_job(hard: Any) -> None:
    with pytest.raises(ValueError, match="hard is"):
        TimeLimits(hard=hard)


class FakeSentry:
    """The functions of ``sentry_sdk`` that are called, and what they were told."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.depth = 0
        self.sent: list[tuple[str, int]] = []

    @contextmanager
    def isolation_scope(self) -> Iterator[FakeSentry]:
        self.depth += 1
        yield self
        self.depth -= 1

    def set_tag(self, name: str, value: str) -> None:
        self.tags[name] = value

    def set_transaction_name(self, name: str) -> None:
        self.tags["name"] = name

    def set_context(self, name: str, values: dict[str, Any]) -> None:
        assert (name, values["attempt"]) == ("sluicemq", 1)

    def capture_exception(self, error: BaseException) -> None:
        self.sent.append((str(error), self.depth))


@pytest.mark.parametrize(
    ("error", "sent"),
    [(None, []), (ValueError("no"), [("no", 1)]), (Retry("later"), []), (Reject("never"), [])],
)
def test_sentry_gets_a_failure_with_its_job(error: Exception | None, sent: list[tuple[str, int]]) -> None:
    sdk = FakeSentry()
    app = App(middleware=[Sentry(sdk)])

    @app.task
    def fail() -> None:
        if error is not None:
            raise error

    if error is None:
        handled(app, "fail")
    else:
        with pytest.raises(type(error)):
            handled(app, "fail")
    assert (sdk.sent, sdk.depth) == (sent, 0)
    assert sdk.tags == {
        "name": "fail", "sluicemq.kind": "fail", "sluicemq.queue": "queue", "sluicemq.job": "id"
    }  # fmt: skip


class Seen(Middleware):
    def __init__(self) -> None:
        self.runs: list[TaskRun] = []

    def before(self, run: TaskRun) -> None:
        self.runs.append(run)


def test_a_run_that_has_ended_is_not_interrupted() -> None:
    seen = Seen()
    app = App(middleware=[seen])
    app.task(kind="quick")(lambda: 7)
    handled(app, "quick")
    assert not seen.runs[0].interrupt(TaskTimeoutError)


def test_the_span_of_a_run_has_the_name_of_its_task() -> None:
    traced = Traced()
    app = App(middleware=[Telemetry()])

    @app.task
    async def cook() -> None:
        with traced.tracer.start_as_current_span("stir"):
            pass

    with traced.tracer.start_as_current_span("process queue"):
        handled(app, "cook")
    span, inner = traced.one("process cook"), traced.one("stir")
    assert (span.attributes or {})["sluicemq.kind"] == "cook"
    assert inner.parent is not None
    assert inner.parent.span_id == span.context.span_id


def test_coroutines_and_time_limits_work_in_the_child_of_a_fork() -> None:
    # Given: their loops run in this process
    app = slow_tasks()
    with pytest.raises(TaskTimeoutError):
        handled(app, "coroutine")
    child = os.fork()
    if child == 0:
        try:
            handled(app, "coroutine")
        except TaskTimeoutError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


PATCHED = """
from gevent import monkey
monkey.patch_all()
from sluicemq import App, Job

app = App()

@app.task(timeout=60)
def plain():
    return 7

@app.task(timeout=60)
async def coroutine():
    return 7

print(app.handler(Job(b"{}", headers={"kind": "plain"})))
try:
    app.handler(Job(b"{}", headers={"kind": "coroutine"}))
except RuntimeError as error:
    print(error)
"""


def test_under_gevent_functions_run_and_coroutines_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PATCHED], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    first, second = done.stdout.splitlines()
    assert first == "b'7'"
    assert second.startswith("gevent has replaced the threads of this process")
