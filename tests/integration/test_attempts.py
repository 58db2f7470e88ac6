"""Why attempts failed, in the job and over all queues; dead letters by what was raised."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from sluicemq import Client, Job, Producer, Reject, Worker
from sluicemq.failures import failure_of
from sluicemq.protocol.readable import MOST_TRACEBACK, cut_in_middle
from sluicemq_broker.admin.dead_letters import errors_row
from sluicemq_broker.job import TRACEBACKS_KEPT
from sluicemq_broker.store import LatestError, type_of
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

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


def test_each_failure_says_where_and_when(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
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


#: By id: the kind, and what its worker says.
LETTERS = {
    "typed": ("mail", KeyError("name")),
    "other": ("mail", ValueError("no such template")),
    "again": ("sms", KeyError("number")),
}
#: Reasons without a type, of which some are of one error.
REASONS = ("timed out after 30 s", "timed out after 2 s", "disk (a+b) full", "disk (a+b) full: sda", "a#b")


@pytest.fixture(scope="module")
def letters_broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    queues = {name: {"backoff": "none", "max_attempts": 1} for name in ("mail", "plain", "sms")}
    with serving(mongo_uri, [], queues=queues, http="127.0.0.1:0") as broker:
        endpoint = broker.process.doors["smq"]
        with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
            for job_id, (kind, _) in LETTERS.items():
                producer.push("mail", b"\x00\xff" if job_id == "typed" else b"text", id=job_id, kind=kind)
            for number, reason in enumerate(REASONS):
                producer.push("plain", reason.encode(), id=f"p-{number}")
            producer.flush(TIMEOUT)
            with Worker("mail", fail, endpoint=endpoint):
                wait_until(lambda: client.queues.get("mail").dead == len(LETTERS))
            with client.jobs.reserve("plain", len(REASONS)) as claim:
                for job in claim.jobs:
                    job.reject(job.payload.decode())
            wait_until(lambda: client.queues.get("plain").dead == len(REASONS))
        yield broker.process


def fail(job: Job) -> None:
    raise LETTERS[job.id][1]


@pytest.fixture
def client(letters_broker: BrokerProcess) -> Iterator[Client]:
    with Client(endpoint=letters_broker.doors["smq"]) as client:
        yield client


def test_each_error_of_the_groups_chooses_as_many_as_were_counted(client: Client) -> None:
    for queue in ("mail", "plain"):
        errors = client.dead_letters.by_error(queue).errors
        assert errors
        for group in errors:
            found = client.dead_letters.latest(queue, error=group.type, place=group.place or "?")
            assert len(found) == group.count, group
            assert client.dead_letters.count(queue, error=group.type).count >= group.count
    timed_out = type_of(REASONS[0])
    assert {letter.id for letter in client.dead_letters.latest("plain", error=timed_out)} == {"p-0", "p-1"}
    assert [letter.id for letter in client.dead_letters.latest("plain", error="a#b")] == ["p-4"]
    assert client.dead_letters.latest("plain", error="disk (a+b) full: sda", place="nowhere") == []


def test_letters_of_a_kind_and_an_error_are_listed_with_the_latest_first(client: Client) -> None:
    latest = client.dead_letters.latest("mail")
    died = [letter.ended_at or 0.0 for letter in latest]
    assert died == sorted(died, reverse=True)
    assert [letter.id for letter in client.dead_letters.latest("mail", kind="sms", error="KeyError")] == [
        "again"
    ]
    assert len(client.dead_letters.latest("mail", 2)) == 2


def test_an_export_has_every_letter_whole(letters_broker: BrokerProcess, client: Client) -> None:
    whole = {letter.id: letter for letter in client.dead_letters.iterate("mail")}
    assert whole.keys() == LETTERS.keys()
    assert whole["typed"].payload == b"\x00\xff"
    assert "KeyError" in str(whole["typed"].errors)
    answer = Web(letters_broker.http).get("/api/v1/queues/mail/dead-letters/export?error=KeyError")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert {letter["id"] for letter in lines} == {"typed", "again"}
    (typed,) = (letter for letter in lines if letter["id"] == "typed")
    assert (typed["queue"], typed["payload"]) == ("mail", {"base64": "AP8="})
    assert "traceback" in typed["errors"][0]
    assert Web(letters_broker.http).get("/api/v1/queues/no-queue/dead-letters/export").status == 404


def test_only_the_letters_of_an_error_are_taken(letters_broker: BrokerProcess, client: Client) -> None:
    error = type_of(REASONS[0])
    assert client.dead_letters.redrive("plain", error=error).result(TIMEOUT).moved == 2
    assert {letter.id for letter in client.jobs.list("plain", "ready")} == {"p-0", "p-1"}
    assert client.dead_letters.discard("plain", error="a#b", place="?").result(TIMEOUT) == 1
    assert {letter.id for letter in client.dead_letters.latest("plain")} == {"p-2", "p-3"}
