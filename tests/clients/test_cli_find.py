"""``sluicemq find``, ``history`` and ``incidents``: what they ask, what they show, and how they go on."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
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


POINTS = [
    {"at": 1_700_000_040.0 + 60 * n, "counted": {"pushed": n, "delivered": 2, "waited": 3000, "ready": 7}}
    for n in range(90)
]
TOLD: dict[str, Any] = {"subject": "queue", "name": "mail", "span": "minute", "total": {}, "points": POINTS}


def test_the_last_hour_is_shown_by_minute(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.HISTORY] = lambda _message: TOLD
    head, *lines = run("history", "queue", "mail").stdout.splitlines()
    assert head.split()[:4] == ["minute", "pushed", "delivered", "committed"]
    assert len(lines) == 60
    assert lines[-1].split() == ["23:43", "89", "2", "0", "0", "0", "0", "7", "1.5", "s", "-"]
    assert broker.of(wire.HISTORY)[-1].fields == ["queue", "mail", None, "minute"]


def test_other_spans_and_days_are_asked_for_and_shown_whole(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.HISTORY] = lambda message: {**TOLD, "span": message.fields[3]}
    for flag, shown in (("--hour", "11-14 23:00"), ("--day", "2023-11-14"), ("--month", "2023-11")):
        lines = run("history", "queue", "mail", flag, "--on", "2023-11-14").stdout.splitlines()
        assert len(lines) == 91
        assert lines[-1].startswith(shown)
        assert broker.of(wire.HISTORY)[-1].fields == ["queue", "mail", "2023-11-14", flag[2:]]


def test_as_json_it_is_what_the_broker_told(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.HISTORY] = lambda _message: TOLD
    assert json.loads(run("history", "queue", "mail", "--json").stdout) == TOLD


def test_a_queue_without_history_says_so(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.HISTORY] = lambda _message: {**TOLD, "points": []}
    assert run("history", "queue", "mail").stderr == "nothing was counted in mail\n"


@pytest.mark.parametrize("kind", ["queue", "stream", "device", "broker"])
def test_it_can_be_drawn(broker: ScriptedBroker, run: Run, tmp_path: Path, kind: str) -> None:
    broker.on[wire.HISTORY] = lambda _message: {**TOLD, "subject": kind}
    assert run("history", "queue", "mail", "--plot", str(tmp_path / "mail.svg")).exit_code == 0
    assert "<svg" in (tmp_path / "mail.svg").read_text()


@pytest.mark.parametrize("file", ["mail.txt", "no/such/folder/mail.svg"])
def test_what_it_can_not_be_drawn_into_is_said(
    broker: ScriptedBroker, run: Run, tmp_path: Path, file: str
) -> None:
    broker.on[wire.HISTORY] = lambda _message: TOLD
    refused = run("history", "queue", "mail", "--plot", str(tmp_path / file))
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: can't draw {tmp_path / file}: ")


def test_streams_and_devices_have_columns_of_their_own(broker: ScriptedBroker, run: Run) -> None:
    counted = {
        "published": 5, "published_bytes": 900, "messages_read": 7, "read_bytes": 1000,
        "received": 4, "sent": 3, "lost": 1, "paused": 2000,
    }  # fmt: skip
    broker.on[wire.HISTORY] = lambda message: {
        "subject": message.fields[0], "name": message.fields[1], "span": "minute", "total": {},
        "points": [{"at": 1_700_000_040.0, "counted": counted}],
    }  # fmt: skip
    # When, Then
    head, line = run("history", "stream", "prices").stdout.splitlines()
    assert head.split() == ["minute", "published", "bytes", "again", "read", "bytes", "read", "gone"]
    assert line.split() == ["22:14", "5", "900", "0", "7", "1000", "0"]
    head, line = run("history", "device", "streamer.mail").stdout.splitlines()
    assert head.split() == ["minute", "received", "sent", "lost", "paused"]
    assert line.split() == ["22:14", "4", "3", "1", "2.0", "s"]
    assert [job.fields[:2] for job in broker.of(wire.HISTORY)] == [
        ["stream", "prices"], ["device", "streamer.mail"],
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["mail", "--stream", "prices"]])
def test_a_history_is_of_one_thing(run: Run, arguments: list[str]) -> None:
    assert run("history", *arguments).exit_code == 2


END = 1_700_000_000.0
DIED = {"kind": "dead_letters", "queue": "mail", "at": END - 3700, "until": END - 10, "brokers": ["a", "b"],
        "figures": {"count": 3, "reason": "no such address"}}  # fmt: skip
AWAY = {
    "kind": "store_away",
    "queue": "",
    "at": END - 7300,
    "until": END - 7290,
    "brokers": ["a"],
    "figures": {},
}


@pytest.fixture
def incidents(broker: ScriptedBroker) -> ScriptedBroker:
    answer = {"since": END - 86_400, "until": END, "incidents": [DIED, AWAY]}
    broker.on[wire.INCIDENTS] = lambda _message: answer
    return broker


def test_incidents_are_shown_with_their_figures_the_latest_first(incidents: ScriptedBroker, run: Run) -> None:
    head, first, second = run("incidents").stdout.splitlines()
    assert head.split() == ["began_at", "lasted", "incident", "queue", "brokers", "figures"]
    assert first.split()[-9:] == ["mail", "a,", "b", "count", "3,", "reason", "no", "such", "address"]
    assert second.split()[-4:] == ["store_away", "-", "a", "-"]
    assert incidents.of(wire.INCIDENTS)[-1].fields == ["day", None]


@pytest.mark.parametrize(
    ("since", "span", "shown"),
    [("5s", "hour", []), ("1h", "hour", [DIED]), ("3h", "day", [DIED, AWAY]), ("30d", "month", [DIED, AWAY])],
)
def test_incidents_that_went_on_since_then_are_shown(
    incidents: ScriptedBroker, run: Run, since: str, span: str, shown: list[dict[str, Any]]
) -> None:
    told = json.loads(run("incidents", "list", "--queue", "mail", "--since", since, "--json").stdout)
    assert told["incidents"] == shown
    assert incidents.of(wire.INCIDENTS)[-1].fields == [span, "mail"]


def test_incidents_have_bounds_of_time_and_number(incidents: ScriptedBroker, run: Run) -> None:
    assert len(run("incidents", "--limit", "1").stdout.splitlines()) == 2
    assert "30 days at most" in run("incidents", "--since", "31d").stderr
    assert run("incidents", "--since", "5s").stderr == "no incidents in 5 s\n"
    incidents.hello["permissions"] = {"push": ["mail"]}
    assert "takes the permission read" in run("incidents", "--since", "5s").stderr
