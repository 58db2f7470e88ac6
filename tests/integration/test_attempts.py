"""Why an attempt failed: traceback, place, worker and times, in the job; and errors over all queues."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from sluicemq import Client, Job, Producer, Reject, Worker
from sluicemq.failures import failure_of
from sluicemq.protocol.readable import MOST_TRACEBACK, cut_in_middle
from sluicemq_broker.admin.errors import errors_row
from sluicemq_broker.job import TRACEBACKS_KEPT, Failure
from sluicemq_broker.store import LatestError
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import wait_until

AT_ONCE = {"max_attempts": 5, "backoff": "none"}


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with serving(
        mongo_uri, [], queues={"mail": AT_ONCE, "other": AT_ONCE, "groups": AT_ONCE}, http="127.0.0.1:0"
    ) as broker:
        yield broker.process


def send(job: Job) -> None:
    deeper(job.attempt)


def deeper(attempt: int) -> None:
    raise KeyError(f"no address in attempt {attempt}")


def test_each_failed_attempt_says_where_when_and_in_which_process(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        # Given a job that fails until it is dead
        job_id = producer.push("mail", b"x").id
        with caplog.at_level(logging.WARNING, "sluicemq"), Worker("mail", send, endpoint=endpoint):
            wait_until(lambda: client.dead_letters.count("mail").count == 1)
        # When it is shown
        row = client.jobs.get("mail", job_id)
    # Then each attempt has its times, place and process, and the last ones have their tracebacks
    attempts = row.errors
    assert attempts is not None
    assert [attempt.attempt for attempt in attempts] == [1, 2, 3, 4, 5]
    for attempt in attempts:
        assert (attempt.type, attempt.place) == ("KeyError", f"{__name__}.deeper")
        assert (attempt.host, attempt.pid) == (socket.gethostname(), os.getpid())
        assert attempt.began_at is not None
        assert attempt.at is not None
        assert attempt.began_at <= attempt.at
    traces = [attempt.traceback for attempt in attempts]
    assert [trace is not None for trace in traces] == [False, False, True, True, True]
    assert str(traces[-1]).endswith("KeyError: 'no address in attempt 5'")
    assert "deeper(job.attempt)" in str(traces[-1])
    assert "sluicemq/verdicts.py" not in str(traces[-1])
    # And the log has a line for each, with the traceback of the first and the last
    lines = [record.getMessage() for record in caplog.records if job_id in record.getMessage()]
    assert [line.count("\n") > 0 for line in lines] == [True, False, False, False, True]
    assert lines[1].endswith("attempt 2 of 5, it comes again: KeyError: 'no address in attempt 2'")
    assert TRACEBACKS_KEPT == 3


def has_dead(client: Client, queue: str, count: int) -> bool:
    return client.dead_letters.count(queue).count == count


def test_dead_letters_are_grouped_by_error_over_all_queues(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]

    def reject(job: Job) -> None:
        raise Reject(f"no account {job.id}")

    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        # Given dead letters of two queues, of which three share an error though their texts differ
        before = client.dead_letters.by_error()
        for queue, function, count in (("other", reject, 3), ("groups", send, 1)):
            for _ in range(count):
                producer.push(queue, b"x", kind="charge", max_attempts=1)
            with Worker(queue, function, endpoint=endpoint):
                wait_until(partial(has_dead, client, queue, count))
        found = client.dead_letters.by_error()
        rejected = next(error for error in found.errors if error.type == "sluicemq.protocol.errors.Reject")
        assert (rejected.count, rejected.exact, rejected.queues) == (3, True, ("other",))
        assert rejected.kinds == ("charge",)
        assert rejected.place.endswith("reject")
        raised = next(error for error in found.errors if error.place == f"{__name__}.deeper")
        assert "groups" in raised.queues
        assert found.looked == before.looked + 4
        # And of one queue only its own
        assert [error.count for error in client.dead_letters.by_error("other").errors] == [3]
        answer = Web(broker.http).get("/api/v1/errors?queue=other").json
        assert [row["job"] for row in answer["errors"]] == [rejected.job]


def test_an_error_without_a_type_is_grouped_by_the_beginning_of_its_reason() -> None:
    def latest(reason: str) -> LatestError:
        return LatestError("mail", "a", "", 1.0, "", "", reason)

    reasons = [
        "OSError: no space on 7",
        "OSError: no space on 8",
        "exit status 3",
        "exit status 4",
        "timed out",
    ]
    found = errors_row([latest(text) for text in reasons], 20, {"mail": 5})
    assert {(error.type, error.count) for error in found.errors} == {
        ("OSError", 2),
        ("exit status #", 2),
        ("timed out", 1),
    }


def test_the_latest_dead_letters_stand_for_all() -> None:
    letters = [LatestError("mail", str(number), "", float(-number), "E", "f", "") for number in range(10)]
    found = errors_row(letters, 10, {"mail": 1000, "other": 5})
    assert [(error.count, error.exact) for error in found.errors] == [(1000, False)]
    assert (found.looked, found.dead) == (10, 1005)


def test_a_traceback_is_cut_in_the_middle_and_shows_the_last_frames() -> None:
    def again(depth: int) -> None:
        if depth:
            again(depth - 1)
        raise ValueError("deep" + "x" * 3 * MOST_TRACEBACK)

    with pytest.raises(ValueError, match="deep") as raised:
        again(300)
    failure = failure_of(raised.value, 0.0)
    assert len(failure.traceback) == MOST_TRACEBACK
    assert "characters are left out" in failure.traceback
    assert failure.place.endswith("again")


def test_an_exception_that_can_not_be_shown_is_described_nevertheless() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error = Hostile()
    failure = failure_of(error, 0.0)
    assert failure.type.endswith("Hostile")
    assert failure.traceback


@pytest.mark.parametrize("most", [100, 1000])
def test_a_cut_text_has_its_beginning_and_its_end(most: int) -> None:
    text = "".join(map(str, range(1000)))
    cut = cut_in_middle(text, most)
    assert len(cut) == most
    assert (cut[:20], cut[-20:]) == (text[:20], text[-20:])
    assert cut_in_middle("short", most) == "short"


def test_what_a_worker_says_wrongly_of_a_failure_is_left_out() -> None:
    assert Failure.read({"type": 7, "place": None, "traceback": "text", "seconds": -1.0}) == Failure()
    assert Failure.read({"seconds": float("nan")}) == Failure()
    assert len(Failure.read({"traceback": b"x" * 10 * MOST_TRACEBACK}).traceback) == MOST_TRACEBACK
