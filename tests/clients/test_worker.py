"""The worker against a scripted broker: verdicts, credit, heartbeats, its end."""

import functools
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import (
    BadFramesError,
    BadQueueError,
    Job,
    LeaseLostError,
    Reject,
    Requeue,
    Retry,
    UnavailableError,
    Worker,
)
from sluicemq.protocol import wire
from sluicemq.transport.assignment import Assignment
from sluicemq.transport.connection import Connection
from support.waiting import wait_until


def test_a_handler_sees_the_job_and_its_bytes_are_the_result(broker: ScriptedBroker) -> None:
    seen: list[Any] = []

    def handler(job: Job) -> bytes:
        seen.append((job.id, job.payload, job.headers, job.attempt, job.queue))
        return job.payload.upper()

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"], attempt=3)
        broker.wait_for(wire.SETTLE)
    assert seen == [("id-a", b"a", {"k": "v"}, 3, "q")]
    assert broker.settled() == {b"r-a": ["COMMIT", b"A", None]}


def test_a_handler_is_told_of_priority_age_and_attempts(broker: ScriptedBroker) -> None:
    seen: list[Job] = []
    # When: a broker tells them, and one of an older version does not
    with Worker("q", seen.append, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver_told(peer, "q", priority=9, age=100.0, max_attempts=3)
        broker.deliver(peer, "q", [b"a"])
        broker.wait_until(lambda: len(broker.settled()) == 2)
    told, untold = seen
    assert (told.priority, told.max_attempts, told.age >= 100.0) == (9, 3, True)
    assert (untold.priority, untold.max_attempts, untold.age < 100.0) == (0, 0, True)


def failing(job: Job) -> Any:
    match job.payload:
        case b"none":
            return None
        case b"array":
            return bytearray(b"x")
        case b"reject":
            raise Reject("no such user")
        case b"rollback":
            raise Retry("later", delay=2.5)
        case b"now":
            raise Retry(delay=0)
        case b"backoff":
            raise Retry("as usual")
        case b"release":
            raise Requeue
        case b"error":
            raise OSError("disk full")
        case b"exit":
            raise SystemExit(3)
    return 42


NO_RESULT = "the handler returned int, expected bytes, a Forward or None"


@pytest.mark.parametrize(
    ("payload", "verdict"),
    [
        (b"none", ["COMMIT", None, None]),
        (b"array", ["COMMIT", b"x", None]),
        (b"reject", ["REJECT", "no such user", None]),
        (b"rollback", ["ROLLBACK", "later", 2.5]),
        (b"now", ["ROLLBACK", "", 0]),
        (b"backoff", ["ROLLBACK", "as usual", None]),
        (b"release", ["RELEASE", None, None]),
        (b"error", ["ROLLBACK", "OSError: disk full", None]),
        (b"exit", ["ROLLBACK", "SystemExit: 3", None]),
        (b"number", ["ROLLBACK", f"TypeError: {NO_RESULT}", None]),
    ],
)
def test_what_the_handler_does_decides(broker: ScriptedBroker, payload: bytes, verdict: list[Any]) -> None:
    with Worker("q", failing, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [payload])
        broker.wait_for(wire.SETTLE)
    assert broker.settled() == {b"r-" + payload: verdict}


@pytest.mark.parametrize(("prefetch", "concurrency", "credit"), [(1, 1, 1), (50, 2, 50), (1, 4, 4)])
def test_the_credit_is_the_prefetch_and_at_least_a_job_per_thread(
    broker: ScriptedBroker, prefetch: int, concurrency: int, credit: int
) -> None:
    with Worker("q", lambda _job: None, prefetch=prefetch, concurrency=concurrency, endpoint=broker.endpoint):
        assert broker.wait_for(wire.READY)[0].fields == ["q", credit, {"wait": True}]


def test_as_many_handlers_run_at_once_as_concurrency_says(broker: ScriptedBroker) -> None:
    # Given: handlers that end only when all four run
    together = threading.Barrier(4, timeout=SECONDS)

    def handler(_job: Job) -> None:
        together.wait()

    with Worker("q", handler, concurrency=4, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"1", b"2", b"3", b"4"])
        broker.wait_until(lambda: len(broker.settled()) == 4)
    assert {row[0] for row in broker.settled().values()} == {"COMMIT"}


def test_verdicts_of_short_jobs_travel_together(broker: ScriptedBroker) -> None:
    with Worker("q", lambda _job: None, prefetch=5000, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"%d" % number for number in range(5000)])
        broker.wait_until(lambda: len(broker.settled()) == 5000)
    assert len(broker.of(wire.SETTLE)) < 1000


def test_heartbeats_go_on_while_a_handler_blocks(broker: ScriptedBroker) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> None:
        started.set()
        assert go_on.wait(SECONDS)

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        assert started.wait(SECONDS)
        beats = len(broker.of(wire.PING))
        broker.wait_for(wire.PING, beats + 4)
        # Then: still the same connection, and the verdict comes on it
        go_on.set()
        broker.wait_for(wire.SETTLE)
    assert len(broker.of(wire.HELLO)) == 1


def test_a_job_is_extended_from_its_handler(broker: ScriptedBroker) -> None:
    with Worker("q", lambda job: job.extend(30), endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        broker.wait_for(wire.SETTLE)
    assert broker.of(wire.EXTEND)[0].fields == [[b"r-a"], 30]
    assert broker.settled()[b"r-a"][0] == "COMMIT"


def test_a_job_that_is_no_longer_held_can_not_be_extended(broker: ScriptedBroker) -> None:
    broker.on[wire.EXTEND] = lambda _message: [[0, "LEASE_LOST", "given to another"]]
    seen: list[str] = []

    def handler(job: Job) -> None:
        with pytest.raises(LeaseLostError, match="given to another") as caught:
            job.extend(30)
        seen.append(str(caught.value))

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        broker.wait_for(wire.SETTLE)
    assert seen == ["given to another"]


def test_verdicts_too_late_are_counted(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.on[wire.SETTLE] = lambda _message: [[0, "LEASE_LOST", "given to another"]]
    with Worker("q", lambda _job: None, endpoint=broker.endpoint) as worker:
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        broker.wait_for(wire.SETTLE)
    assert worker.late == 1
    assert worker.late_by_kind == {"COMMIT": 1}
    assert "COMMIT of job id-a refused: LEASE_LOST given to another" in caplog.text


def test_stopping_finishes_what_runs_and_gives_back_what_had_not_started(broker: ScriptedBroker) -> None:
    # Given: one job running, two waiting
    started, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> bytes:
        started.set()
        assert go_on.wait(SECONDS)
        return b"done"

    worker = Worker("q", handler, prefetch=3, endpoint=broker.endpoint)
    worker.start()
    peer = broker.wait_for(wire.READY)[0].peer
    broker.deliver(peer, "q", [b"runs", b"waits", b"waits-too"])
    assert started.wait(SECONDS)
    # When: it stops, and one more job was on its way
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    assert broker.wait_for(wire.READY, 2)[1].fields[:2] == ["q", 0]
    broker.deliver(peer, "q", [b"late"])
    broker.wait_until(lambda: len(broker.settled()) == 3)
    go_on.set()
    stopper.join(SECONDS)
    release = ["RELEASE", None, 0.0]
    assert broker.settled() == {
        b"r-waits": release,
        b"r-waits-too": release,
        b"r-late": release,
        b"r-runs": ["COMMIT", b"done", None],
    }
    assert [message.verb for message in broker.received if message.verb != wire.PING][-1] == wire.BYE


def test_a_job_whose_broker_was_asked_after_a_standstill_does_not_begin_in_a_worker_that_stops(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a process that stood still, and a thread that asks whether its next job is still its own
    asked, answered = threading.Event(), threading.Event()

    def still_holds(part: Assignment, job: Job) -> bool:
        asked.set()
        assert answered.wait(SECONDS)
        return part.holds(job)

    monkeypatch.setattr(Connection, "doubtful", True)
    monkeypatch.setattr(Assignment, "still_holds", still_holds)
    begun: list[Job] = []
    worker = Worker("q", begun.append, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
    assert asked.wait(SECONDS)
    # When: the worker is stopped before the answer
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    broker.wait_until(
        lambda: [message.fields[1] for message in broker.received if message.verb == wire.READY][-1] == 0
    )
    answered.set()
    stopping.join(SECONDS)
    # Then: the job goes back
    assert broker.settled() == {b"r-a": ["RELEASE", None, 0.0]}
    assert not begun


def test_a_handler_that_outlives_the_deadline_does_not_hold_up_the_stop(broker: ScriptedBroker) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> None:
        started.set()
        assert go_on.wait(SECONDS)

    worker = Worker("q", handler, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
    assert started.wait(SECONDS)
    finished = worker.stop(0.05)
    assert not finished
    assert broker.wait_for(wire.BYE)
    assert broker.settled() == {}
    go_on.set()


def test_only_handlers_with_a_job_are_named(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    # Given: three threads, of which one has a job
    started, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> None:
        started.set()
        assert go_on.wait(SECONDS)

    worker = Worker("q", handler, concurrency=3, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
    assert started.wait(SECONDS)
    worker.stop(0)
    go_on.set()
    assert "1 handler still runs; its job is given back" in caplog.text


def test_stopping_an_idle_worker_names_none(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("q", lambda _job: None, concurrency=20, endpoint=broker.endpoint)
    worker.start()
    broker.wait_for(wire.READY)
    assert worker.stop(0)
    assert "still" not in caplog.text


def test_a_worker_that_its_handler_stops_begins_no_other_job(broker: ScriptedBroker) -> None:
    seen: list[bytes] = []

    def handler(job: Job) -> None:
        seen.append(job.payload)
        worker.stop()

    worker = Worker("q", handler, prefetch=50, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"%d" % number for number in range(50)])
    broker.wait_for(wire.BYE)
    assert seen == [b"0"]
    assert [row[0] for row in broker.settled().values()].count("RELEASE") == 49


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(), KeyboardInterrupt()])
def test_a_stop_goes_on_whatever_on_stop_raises(broker: ScriptedBroker, error: BaseException) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> bytes:
        started.set()
        assert go_on.wait(SECONDS)
        return b"done"

    def on_stop() -> None:
        go_on.set()
        raise error

    worker = Worker("q", handler, prefetch=2, on_stop=on_stop, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"runs", b"waits"])
    assert started.wait(SECONDS)
    assert worker.stop()
    assert worker.stop()
    broker.wait_for(wire.BYE)
    assert broker.settled()[b"r-runs"] == ["COMMIT", b"done", None]
    assert broker.settled()[b"r-waits"][0] in ("COMMIT", "RELEASE")


def test_a_stop_does_not_wait_for_ever_for_an_on_stop_that_does_not_return(broker: ScriptedBroker) -> None:
    go_on = threading.Event()

    def on_stop() -> None:
        assert go_on.wait(SECONDS)

    worker = Worker("q", lambda _job: None, on_stop=on_stop, endpoint=broker.endpoint)
    worker.start()
    broker.wait_for(wire.READY)
    assert worker.stop(0.1)
    assert broker.wait_for(wire.BYE)
    go_on.set()


def test_on_stop_may_stop_the_worker_once_more(broker: ScriptedBroker) -> None:
    def on_stop() -> None:
        worker.stop()

    worker = Worker("q", lambda _job: None, on_stop=on_stop, endpoint=broker.endpoint)
    worker.start()
    broker.wait_for(wire.READY)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    stopper.join(SECONDS)
    assert not stopper.is_alive()
    assert broker.wait_for(wire.BYE)


def test_a_handler_may_stop_its_worker_twice_and_raise(broker: ScriptedBroker) -> None:
    def handler(_job: Job) -> None:
        worker.stop()
        worker.stop()
        raise Reject("the last one")

    worker = Worker("q", handler, prefetch=2, endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a", b"b"])
    broker.wait_for(wire.BYE)
    assert broker.settled() == {b"r-a": ["REJECT", "the last one", None], b"r-b": ["RELEASE", None, 0.0]}


def test_of_verdicts_refused_together_only_the_one_at_fault_goes_back(broker: ScriptedBroker) -> None:
    # Given: a broker that can't read messages with this result in them
    def settle(message: Any) -> Any:
        return BadFramesError("too many") if any(row[2] == b"bad" for row in message.fields[0]) else []

    broker.on[wire.SETTLE] = settle
    together = threading.Barrier(8, timeout=SECONDS)

    def handler(job: Job) -> bytes:
        together.wait()
        return job.payload

    with Worker("q", handler, concurrency=8, endpoint=broker.endpoint):
        payloads = [b"%d" % number for number in range(7)] + [b"bad"]
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", payloads)
        broker.wait_until(lambda: broker.settled().get(b"r-bad", [""])[0] == "ROLLBACK")
    ended = broker.settled()
    assert ended.pop(b"r-bad")[:2] == ["ROLLBACK", "its COMMIT was refused: BAD_FRAMES: too many"]
    assert ended == {b"r-%d" % number: ["COMMIT", b"%d" % number, None] for number in range(7)}


def test_a_result_beyond_what_the_broker_reads_is_no_result_and_the_connection_stays() -> None:
    small = ScriptedBroker(limit=100).start()
    try:
        with Worker(
            "q", lambda job: bytes(3 << 20) if job.payload == b"big" else b"", endpoint=small.endpoint
        ):
            peer = small.wait_for(wire.READY)[0].peer
            small.deliver(peer, "q", [b"big"])
            small.deliver(peer, "q", [b"small"])
            small.wait_until(lambda: len(small.settled()) == 2)
        verb, reason, _delay = small.settled()[b"r-big"]
        assert verb == "ROLLBACK"
        assert reason.startswith("its COMMIT was refused: TOO_LARGE: SETTLE has ")
        assert len(small.of(wire.HELLO)) == 1
    finally:
        small.stop()


def test_stopping_before_the_start_and_twice_is_harmless(broker: ScriptedBroker) -> None:
    worker = Worker("q", lambda _job: None, endpoint=broker.endpoint)
    assert worker.stop()
    worker.start()
    assert worker.stop()
    assert worker.stop()


def test_a_worker_whose_queue_is_refused_ends_with_that_error(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = lambda message: BadQueueError("no such queue") if message.fields[1] else None
    with pytest.raises(BadQueueError, match="no such queue"):
        Worker("q", lambda _job: None, endpoint=broker.endpoint).run()


def test_a_broker_that_can_not_grant_work_just_now_is_asked_again(broker: ScriptedBroker) -> None:
    answers = iter([UnavailableError("no MongoDB"), None, None])
    broker.on[wire.READY] = lambda _message: next(answers)
    with Worker("q", lambda _job: None, prefetch=7, endpoint=broker.endpoint):
        ready = broker.wait_for(wire.READY, 2)
    assert [message.fields[:2] for message in ready[:2]] == [["q", 7], ["q", 7]]


def test_run_returns_when_another_thread_stops_the_worker(broker: ScriptedBroker) -> None:
    worker = Worker("q", lambda _job: None, endpoint=broker.endpoint)
    runner = threading.Thread(target=worker.run)
    runner.start()
    broker.wait_for(wire.READY)
    worker.stop()
    runner.join(SECONDS)
    assert not runner.is_alive()


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"concurrency": 0}])
def test_a_worker_without_hands_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Worker("q", lambda _job: None, **options, endpoint="tcp://127.0.0.1:1")


async def coroutine(_job: Job) -> bytes:
    return b""


async def async_generator(_job: Job) -> Any:
    yield b""


def generator(_job: Job) -> Any:
    yield b""


class Called:
    """An object whose call only begins."""

    async def __call__(self, _job: Job) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("handler", "what"),
    [
        (coroutine, "an async def"),
        (Called(), "an async def"),
        (functools.partial(coroutine), "an async def"),
        (Called().__call__, "an async def"),
        (async_generator, "an async generator"),
        (generator, "a generator"),
        (b"handler", "can't be called"),
    ],
)
def test_a_handler_that_would_do_nothing_is_refused_at_once(handler: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        Worker("q", handler, endpoint="tcp://127.0.0.1:1")


def test_a_handler_that_does_nothing_ends_the_worker_at_no_attempt(broker: ScriptedBroker) -> None:
    # Given: what nobody can see before it is called
    worker = Worker("q", lambda job: coroutine(job) if job else None, endpoint=broker.endpoint)  # type: ignore[arg-type, return-value]
    failed: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except TypeError as error:
            failed.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
    runner.join(SECONDS)
    assert "aio.Worker" in str(failed[0])
    assert broker.settled() == {b"r-a": ["RELEASE", None, 0.0]}


PROGRAM = """
import os
import sys
read = os.read
if "gevent" in sys.argv:
    from gevent import monkey, os
    monkey.patch_all()
    read = os.tp_read  # blocks its greenlet only
from sluicemq import Worker

def handler(job):
    print(job.payload.decode(), flush=True)
    read(0, 1)
    return b"done"

Worker(sys.argv[1], "q", handler, prefetch=2, stop_timeout=float(sys.argv[2])).run()
print("stopped", flush=True)
"""


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mode", ["threads", "gevent"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_handler_finish_and_gives_back_the_rest(
    broker: ScriptedBroker, mode: str, number: signal.Signals
) -> None:
    with program(broker.endpoint, "30", mode) as process:
        assert process.stdin
        assert process.stdout
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"runs", b"waits"])
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        broker.wait_for(wire.SETTLE)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(SECONDS) == 0
    assert broker.settled() == {b"r-waits": ["RELEASE", None, 0.0], b"r-runs": ["COMMIT", b"done", None]}
    assert broker.of(wire.BYE)


def test_a_second_signal_stops_at_once(broker: ScriptedBroker) -> None:
    with program(broker.endpoint, "30", "threads") as process:
        assert process.stdout
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"runs", b"waits"])
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGTERM)
        broker.wait_for(wire.SETTLE)
        # When: those within a second of the first are the same one, as of timeout(1)
        said = broker.wait_for(wire.PING)
        while not select.select([process.stdout], [], [], 0.1)[0]:
            process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopped\n"
        assert broker.wait_for(wire.BYE)
        assert len(broker.of(wire.PING)) >= len(said) + 2
    assert list(broker.settled()) == [b"r-waits"]


# ------------------------------------------------------- jobs that nobody has begun


class Gate:
    """A handler that goes on when it may."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self._started = threading.Semaphore(0)
        self._may = threading.Semaphore(0)

    def __call__(self, job: Job) -> bytes:
        self.begun.append(job.payload)
        self._started.release()
        assert self._may.acquire(timeout=SECONDS)
        return job.payload

    def wait(self) -> None:
        assert self._started.acquire(timeout=SECONDS)

    def go_on(self, times: int = 1) -> None:
        self._may.release(times)


def test_a_handler_that_watches_something_has_its_job_extended_until_it_ends(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    def watch(job: Job) -> None:
        job.keep_extending()
        gate(job)

    with Worker("q", watch, concurrency=2, endpoint=broker.endpoint) as worker:
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"a"], within=0.3)
        gate.wait()
        # When: it takes longer than the job's time
        broker.wait_for(wire.EXTEND, 2)
        # Then: also once it is said to be another's, the worker says so, and asks no more
        broker.on[wire.EXTEND] = lambda _message: [[0, "LEASE_LOST", "another's"]]
        wait_until(lambda: "job id-a can't be extended" in caplog.text)
        extended = len(broker.of(wire.EXTEND))
        gate.go_on()
        broker.wait_for(wire.SETTLE)
        worker.stop()
        assert len(broker.of(wire.EXTEND)) == extended
    assert {tuple(message.fields[0]) for message in broker.of(wire.EXTEND)} == {(b"r-a",)}


def ready(broker: ScriptedBroker) -> list[int]:
    """The credit of each READY."""
    return [message.fields[1] for message in broker.of(wire.READY)]


def test_jobs_that_no_handler_can_begin_in_half_their_time_go_back_uncounted_and_no_more_is_asked_for(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    # Given: one job in its only thread, two behind it
    gate = Gate()
    with Worker("q", gate, prefetch=3, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"runs", b"b", b"c"], within=0.2)
        gate.wait()
        broker.wait_until(lambda: len(broker.settled()) == 2)
        # Then: they are given back, after the credit was
        release = ["RELEASE", None, 0.0]
        assert broker.settled() == {b"r-b": release, b"r-c": release}
        verbs = [message.verb for message in broker.received if message.verb in (wire.READY, wire.SETTLE)]
        assert verbs[:3] == [wire.READY, wire.READY, wire.SETTLE]
        assert ready(broker) == [3, 0]
        # And when the thread is free again, there is room for all
        gate.go_on()
        broker.wait_for(wire.READY, 3)
        assert ready(broker) == [3, 0, 3]
        broker.deliver(peer, "q", [b"d"])
        gate.wait()
        gate.go_on()
        broker.wait_until(lambda: len(broker.settled()) == 4)
    assert gate.begun == [b"runs", b"d"]
    assert "2 jobs of queue q go back to the broker" in caplog.text


def test_jobs_with_time_left_stay_where_others_go_back(broker: ScriptedBroker) -> None:
    gate = Gate()
    with Worker("q", gate, prefetch=3, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"runs"], within=60.0)
        broker.deliver(peer, "q", [b"patient"], within=60.0)
        broker.deliver(peer, "q", [b"urgent"], within=0.2)
        gate.wait()
        broker.wait_until(lambda: len(broker.settled()) == 1)
        assert list(broker.settled()) == [b"r-urgent"]
        gate.go_on(2)
        broker.wait_until(lambda: len(broker.settled()) == 3)
    assert gate.begun == [b"runs", b"patient"]


def test_the_time_of_a_job_begins_anew_with_its_handler(broker: ScriptedBroker) -> None:
    # Given: a job that has waited for a part of its time
    gate = Gate()
    with Worker("q", gate, prefetch=2, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"first"], within=60.0)
        gate.wait()
        broker.deliver(peer, "q", [b"second"], within=8.0)
        broker.wait_for(wire.PING, len(broker.of(wire.PING)) + 1)  # 0.2 s
        gate.go_on()
        gate.wait()
        extended = broker.wait_for(wire.EXTEND)
        gate.go_on()
    assert [message.fields for message in extended] == [[[b"r-second"], 8.0]]


def test_a_job_that_is_begun_at_once_is_not_extended(broker: ScriptedBroker) -> None:
    with Worker("q", lambda _job: None, prefetch=100, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"%d" % number for number in range(100)], within=600.0)
        broker.wait_until(lambda: len(broker.settled()) == 100)
    assert not broker.of(wire.EXTEND)
    assert {row[0] for row in broker.settled().values()} == {"COMMIT"}


def test_after_a_lost_connection_free_threads_ask_for_jobs(broker: ScriptedBroker) -> None:
    # Given: two of three threads at work
    gate = Gate()
    with Worker("q", gate, prefetch=10, concurrency=3, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a", b"b"])
        gate.wait()
        gate.wait()
        # When the connection is lost, and one of them ends
        broker.stop()
        broker.start()
        broker.wait_for(wire.READY, 2)
        gate.go_on()
        broker.wait_for(wire.READY, 3)
        gate.go_on()
        broker.wait_for(wire.READY, 4)
        assert ready(broker) == [10, 8, 9, 10]


def test_an_older_broker_that_tells_no_timeout_has_nothing_given_back(broker: ScriptedBroker) -> None:
    gate = Gate()
    with Worker("q", gate, prefetch=2, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a", b"b"])
        gate.wait()
        broker.wait_for(wire.PING, len(broker.of(wire.PING)) + 2)
        assert not broker.settled()
        gate.go_on(2)
        broker.wait_until(lambda: len(broker.settled()) == 2)
    assert ready(broker)[0] == 2


# ------------------------------------------------------------------ several workers in one process

SEVERAL = """
import sys
import threading
from sluicemq import BadQueue, Worker

def handler(job):
    pass

first, second, third = [Worker(sys.argv[1], queue, handler) for queue in ("a", "b", "c")]
"""


def run_several(broker: ScriptedBroker, program: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SEVERAL + program, broker.endpoint]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


@pytest.mark.parametrize(
    "program",
    [
        "first.start(); second.start(); third.run()",
        "third.run(first, second)",
        "threading.Thread(target=first.run).start(); second.start(); third.run()",
    ],
)
def test_one_signal_stops_all_workers_of_a_process(broker: ScriptedBroker, program: str) -> None:
    # Given: a program that goes on with something else when its last worker has ended
    with run_several(broker, f"{program}; print('left', flush=True); sys.stdin.read()") as process:
        try:
            broker.wait_for(wire.READY, 3)
            process.send_signal(signal.SIGTERM)
            broker.wait_for(wire.BYE, 3)
            assert process.stdout
            assert process.stdout.readline() == "left\n"
        finally:
            process.communicate(timeout=SECONDS)


def test_of_several_workers_one_that_can_not_go_on_stops_all(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = lambda message: (
        BadQueueError("no such name") if message.fields[0] == "b" else None
    )
    program = """
try:
    first.run(second, third)
except BadQueue as error:
    print(error, flush=True)
"""
    with run_several(broker, program) as process:
        assert process.communicate(timeout=SECONDS)[0] == "no such name\n"
