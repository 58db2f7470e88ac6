"""``sluicemq find``: what it asks, what it shows, and how it goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from time import time
from typing import Any

import pytest
from click.testing import Result

from clients.scripted_broker import SILENCE, Received, ScriptedBroker
from sluicemq.protocol import wire

Run = Callable[..., Result]
Asked = list[list[Any]]


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"queue": "mail", "id": job_id, "state": "dead", "created_at": time(), **fields}


def page(*jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"jobs": list(jobs), "searched": 5, "total": 40_000, "queues": 3, **fields}


@pytest.fixture
def asked() -> Asked:
    """The fields of each request."""
    return []


@pytest.fixture
def answers(broker: ScriptedBroker, asked: Asked) -> list[Any]:
    given: list[Any] = []

    def answer(message: Received) -> Any:
        asked.append(message.fields)
        return given.pop(0)

    broker.on[wire.FIND] = answer
    return given


def test_conditions_are_asked_for_page_after_page(run: Run, asked: Asked, answers: list[Any]) -> None:
    answers += [page(job("a"), next="p1"), page(next="p2", searched=9), page(job("b"), searched=40_000)]
    result = run("find", "--kind", "k", "--header", "order=17=x", "--state", "dead", "--state", "ready")
    options = {"kind": "k", "headers": {"order": "17=x"}, "states": ["dead", "ready"]}
    assert asked == [[options, 20, None], [options, 19, "p1"], [options, 19, "p2"]]
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [["mail", "a"], ["mail", "b"]]
    assert "2 found; searched 40,000 of 40,000 jobs in 3 queues\n" in result.stderr


def test_a_search_that_has_found_enough_says_how_to_go_on(run: Run, asked: Asked, answers: list[Any]) -> None:
    answers += [page(job("a"), job("b"), next='["mail",5]', unread=7)]
    result = run("find", "--text", "ada", "--limit", "2", "--after", "p0", "--queue", "mail")
    assert asked == [[{"text": "ada", "queue": "mail"}, 2, "p0"]]
    assert "but not in 7 that are too large" in result.stderr
    assert result.stderr.rstrip().endswith("""repeat it with --after '["mail",5]'""")


@pytest.mark.parametrize(("given", "ago"), [("2h", 7200.0), ("90", 90.0), ("2030-01-31T12:00:00Z", None)])
def test_a_time_is_a_span_before_now_or_a_moment(
    run: Run, asked: Asked, answers: list[Any], given: str, ago: float | None
) -> None:
    answers += [page()]
    before = time()
    run("find", "--since", given)
    since = asked[0][0]["since"]
    assert since == 1_896_091_200.0 if ago is None else before - ago <= since <= time() - ago


def test_one_word_is_taken_for_an_id_first(run: Run, asked: Asked, answers: list[Any]) -> None:
    # Given a job of this id: nothing else is asked
    answers += [page(job("abc"))]
    assert "1 found in 3 queues" in run("find", "abc").stderr
    assert asked == [[{"id": "abc"}, 20, None]]
    # Given none, and none whose id only begins so
    answers += [page(job("abcd")), page(job("x"))]
    result = run("find", "abc")
    assert asked[1:] == [[{"id": "abc"}, 20, None], [{"words": "abc"}, 20, None]]
    assert "abcd" not in result.stdout


@pytest.mark.parametrize("arguments", [["a", "b"], ["a", "--kind", "k"], ["a", "--after", "p"]])
def test_words_beside_others_are_no_id(
    run: Run, asked: Asked, answers: list[Any], arguments: list[str]
) -> None:
    answers += [page()]
    run("find", *arguments)
    assert [list(options)[-1] for options, *_ in asked] == ["kind" if "k" in arguments else "words"]


def test_a_job_done_and_forgotten_says_how_it_ended(run: Run, asked: Asked, answers: list[Any]) -> None:
    end = {"queue": "mail", "id": "abc", "end": "committed", "at": time() - 180, "worker": "w"}
    answers += [page(ends=[end])]
    assert "abc was committed in mail by w 3 min ago (" in run("find", "abc").stdout
    answers += [page()]
    assert "no job has this id in the 3 queues" in run("find", "--id", "abc").stderr


def test_ctrl_c_says_where_the_search_stopped(run: Run, broker: ScriptedBroker) -> None:
    def answer(message: Received) -> Any:
        if message.fields[2] is None:
            return page(job("a"), next="p1")
        os.kill(os.getpid(), signal.SIGINT)
        return SILENCE

    broker.on[wire.FIND] = answer
    result = run("find", "--text", "x")
    assert result.exit_code == 130
    assert result.stdout.splitlines()[1].split()[:2] == ["mail", "a"]
    assert result.stderr.rstrip().endswith("--after 'p1'")


@pytest.mark.parametrize(
    "arguments", [["--id", "a", "--kind", "k"], ["--header", "order"], ["--since", "soon"], ["--state", "x"]]
)
def test_conditions_that_make_no_sense_are_refused(run: Run, arguments: list[str]) -> None:
    assert run("find", *arguments).exit_code == 2


def test_json_has_all_pages_as_one(run: Run, answers: list[Any]) -> None:
    answers += [page(job("a", payload=b"x"), next="p1"), page(job("b"))]
    found = json.loads(run("find", "--kind", "k", "--json").stdout)
    assert [row["id"] for row in found["jobs"]] == ["a", "b"]
    assert (found["searched"], found["total"], found["next"]) == (5, 40_000, None)
