"""``sluicemq top``, ``workers`` and ``queues --watch``: what they ask, and what stands in 80 columns."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clients.scripted_broker import ScriptedBroker
from sluicemq.cli.app import app
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadVerbError, ForbiddenError
from support.waiting import TIMEOUT

Run = Callable[..., Result]

BROKER = {"version": "1.2", "pid": 7, "uptime": 90.0, "connections": 3, "brokers": 2, "store": "ok"}


def row(name: str, **figures: Any) -> dict[str, Any]:
    counts = {"ready": 0, "scheduled": 0, "reserved": 0, "done": 0, "dead": 0, "workers": 0, **figures}
    rates = {"pushed": 0.0, "delivered": 0.0, "committed": 0.0}
    return {
        "name": name, **counts, "estimates": [], "oldest_ready_age": None, "rates": rates, "paused": [],
    }  # fmt: skip


QUEUES = [
    row("mail", ready=5, dead=1),
    row("images", ready=123_456_789, reserved=99_999, scheduled=1_000, done=7, dead=99_999, workers=128)
    | {"rates": {"pushed": 41_000.5, "delivered": 1.0, "committed": 40_000.0}, "oldest_ready_age": 7000.0}
    | {"paused": ["delivery"], "estimates": ["ready"]},
    row("thumbs", dead=70),
]
WORKER = {
    "queue": "mail", "name": "mailer web-1.example.net:4711", "door": "library", "connected": 7300.0,
    "prefetch": 100, "in_flight": 2, "overdue": 0,
    "jobs": [{"id": "a", "attempt": 1, "seconds": 3.0}, {"id": "b", "attempt": 2, "seconds": 64.0}],
}  # fmt: skip
QUIET = {"pushed": 3.0, "committed": 3.0, "rolled_back": 0.0}
KIND = {
    "queue": "mail", "kind": "mail.welcome", "pushed": 9, "committed": 2, "rolled_back": 7, "rejected": 0,
    "dead": 1, "waited": 1.0, "worked": 0.1, "p50": 0.1, "p95": 0.2, "p99": 0.3,
    "rates": {"pushed": 3.0, "committed": 1.0, "rolled_back": 2.5},
}  # fmt: skip
ERROR = {
    "type": "SMTPError", "place": "mailer.py:88 send", "count": 61, "exact": True, "queues": ["mail"],
    "kinds": ["mail.welcome"], "first_at": 0.0, "last_at": 0.0, "reason": "421", "queue": "mail", "job": "d1",
}  # fmt: skip


@pytest.fixture
def run(broker: ScriptedBroker) -> Run:
    broker.on[wire.QUEUES] = lambda _message: QUEUES
    broker.on[wire.QUEUE] = lambda message: row(message.fields[0], dead=1)
    broker.on[wire.COUNTERS] = lambda _message: {"broker": BROKER, "counters": {}}
    broker.on[wire.WORKERS] = lambda _message: [WORKER]
    broker.on[wire.KINDS] = lambda _message: [KIND, {**KIND, "kind": "quiet", "rates": QUIET, "dead": 0}]
    broker.on[wire.ERRORS] = lambda _message: {"errors": [ERROR], "looked": 1, "dead": 1}
    broker.on[wire.PEEK] = lambda _message: [{"id": "d1", "ended_at": 0.0, "errors": [{"reason": "no disk"}]}]
    return lambda *arguments: CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments])


@pytest.mark.parametrize("command", [["queues"], ["top", "--once"], ["workers"]])
def test_what_is_listed_fits_80_columns(run: Run, command: list[str]) -> None:
    lines = run(*command).stdout.splitlines()
    assert len(lines) > 1
    assert max(len(line) for line in lines) <= 80


def test_top_sorts_by_what_is_asked_for(run: Run) -> None:
    for by, first in (("ready", "images"), ("dead", "images"), ("name", "images"), ("in", "images")):
        assert json.loads(run("top", "--json", "--sort", by).stdout)["queues"][0]["name"] == first
    assert [load["name"] for load in json.loads(run("top", "--json", "--sort", "dead").stdout)["queues"]] == [
        "images", "thumbs", "mail",
    ]  # fmt: skip


def test_top_tells_of_the_broker_and_of_all_queues_together(run: Run) -> None:
    head, sums, columns, first, *_ = run("top", "--once").stdout.splitlines()
    assert head.split() == [
        "SluiceMQ", "1.2", "pid", "7", "up", "2", "min", "connections", "3", "brokers", "2", "store:", "ok",
    ]  # fmt: skip
    assert sums == "3 queues, by ready: in 41000.5/s  out 40000.0/s  ready 123456794"
    assert columns.split()[:3] == ["name", "ready", "sched"]
    assert first.split()[:2] == ["images", "~123456789"]


@pytest.mark.parametrize("named", [["mail"], ["--queue", "mail"]])
def test_top_looks_into_one_queue(run: Run, broker: ScriptedBroker, named: list[str]) -> None:
    shown = run("top", "--once", *named).stdout
    for words in ("mailer web-1.example.net:4711", "2/100", "1 min", "d1", "no disk"):
        assert words in shown
    assert broker.of(wire.WORKERS)[0].fields == ["mail"]


def test_top_shows_the_kinds_that_fail_and_the_errors(run: Run, broker: ScriptedBroker) -> None:
    lines = [line.rstrip() for line in run("top", "--once").stdout.splitlines()]
    kinds = lines.index("kinds that fail")
    assert lines[kinds + 2].split() == ["mail.welcome", "mail", "3", "2.5", "1"]
    assert lines[kinds + 4] == "errors of the latest dead letters"
    assert "SMTPError" in lines[kinds + 6]
    assert "quiet" not in "".join(lines)
    # A broker of an older version has neither
    broker.on[wire.KINDS] = lambda _message: BadVerbError("no such verb")
    assert "kinds that fail" not in run("top", "--once").stdout


def test_a_queue_is_shown_with_all_that_belongs_to_it(run: Run, broker: ScriptedBroker) -> None:
    settings = [
        {"key": "rate", "value": 5.0, "source": "file"},
        {"key": "ttl", "value": None, "source": "default"},
    ]
    broker.on[wire.SETTINGS] = lambda _message: {"settings": settings, "differs": []}
    acme = {"name": "acme", "jobs": 4711, "oldest": None, "held_back": True}
    waiting = {"kinds": [], "tenants": [acme], "groups": [], "looked": 4711, "more": False}
    broker.on[wire.BACKLOG] = lambda _message: waiting
    shown = run("queues", "show", "mail").stdout
    for word in ("rate", "acme", "mailer web-1.example.net:4711", "mail.welcome", "SMTPError"):
        assert word in shown
    assert "ttl" not in shown
    told = json.loads(run("queues", "show", "mail", "--json").stdout)
    assert (told["name"], told["kinds"][0]["kind"]) == ("mail", "mail.welcome")


def test_top_shows_queues_without_a_head_to_who_may_not_operate(run: Run, broker: ScriptedBroker) -> None:
    broker.on[wire.COUNTERS] = lambda _message: ForbiddenError("eve may not operate")
    sums, _columns, first, *_ = run("top", "--once").stdout.splitlines()
    assert sums.startswith("3 queues, by ready")
    assert first.split()[0] == "images"
    assert json.loads(run("top", "--json").stdout)["broker"] == {}


def test_a_store_that_does_not_answer_stands_first(run: Run, broker: ScriptedBroker) -> None:
    broker.on[wire.COUNTERS] = lambda _message: {"broker": {**BROKER, "store": "no primary"}, "counters": {}}
    assert "store: no primary" in run("top", "--once").stdout.splitlines()[0]


def test_workers_are_told_by_who_they_are_and_what_they_have(run: Run, broker: ScriptedBroker) -> None:
    head, line = run("workers").stdout.splitlines()
    assert head.split() == ["queue", "worker", "door", "since", "has", "longest", "doing"]
    assert line.split() == [
        "mail", "mailer", "web-1.example.net:4711", "library", "2", "h", "2/100", "1", "min", "b",
    ]  # fmt: skip
    assert json.loads(run("--json", "workers", "mail").stdout) == {"workers": [WORKER], "unanswered": []}
    assert [worker.fields for worker in broker.of(wire.WORKERS)] == [[None], ["mail"]]


def test_workers_of_all_brokers_are_listed_and_a_silent_one_named(run: Run, broker: ScriptedBroker) -> None:
    broker.on[wire.WORKERS] = lambda _message: [{**WORKER, "broker": "host-a:1"}]
    other = ScriptedBroker().start()
    other.on[wire.WORKERS] = lambda _message: [{**WORKER, "broker": "host-b:2"}]
    endpoints = f"{broker.endpoint},{other.endpoint}"
    head, *lines = run("--endpoint", endpoints, "workers").stdout.splitlines()
    assert head.split()[0] == "broker"
    assert [line.split()[0] for line in lines] == ["host-a:1", "host-b:2"]

    other.stop()
    told = run("--endpoint", endpoints, "--json", "workers")
    answer = json.loads(told.stdout)
    assert [entry["broker"] for entry in answer["workers"]] == ["host-a:1"]
    assert [(entry["endpoint"], entry["code"]) for entry in answer["unanswered"]] == [
        (other.endpoint, "UNAVAILABLE")
    ]
    assert f"no answer from {other.endpoint}" in told.stderr
    assert told.exit_code == 0

    broker.stop()
    assert run("--endpoint", endpoints, "workers").exit_code == 3


def test_a_queue_is_named_once(run: Run) -> None:
    for command in ("top", "events"):
        refused = run(command, "mail", "--queue", "mail")
        assert (refused.exit_code, "give one of QUEUE and --queue" in refused.stderr) == (2, True)


def test_events_stand_in_the_order_in_which_they_happened(run: Run, broker: ScriptedBroker) -> None:
    told = [{"at": 2.0, "event": "delivered"}, {"at": 1.5, "event": "pushed"}]
    answers = [{"after": 0, "missed": 0, "events": []}, {"after": 2, "missed": 0, "events": told}]
    empty = {"after": 2, "missed": 0, "events": []}
    broker.on[wire.EVENTS] = lambda _message: answers.pop(0) if answers else empty
    lines = run("events", "mail", "--for", "0.5").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["pushed", "delivered"]
    assert broker.of(wire.EVENTS)[0].fields[0] == {"queue": "mail"}


@contextmanager
def in_a_terminal(broker: ScriptedBroker, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command with a terminal of its own, 80 by 24."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    program = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *command]
    process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


def read_until(terminal: int, words: str) -> str:
    """What stands there until it has these words."""
    seen, end = "", monotonic() + TIMEOUT
    while words not in seen:
        assert monotonic() < end, f"{words!r} did not come, but {seen[-2000:]!r}"
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


def test_top_is_live_and_obeys_its_keys(broker: ScriptedBroker, run: Run) -> None:
    with in_a_terminal(broker, "top", "--interval", "0.2") as (process, terminal):
        read_until(terminal, "by ready")
        os.write(terminal, b"s")
        read_until(terminal, "by in")
        os.write(terminal, b"\x1b[B\r")
        read_until(terminal, "no disk")
        os.write(terminal, b"\x1b")
        read_until(terminal, "by in")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")  # the terminal is as it was before
        assert process.wait(TIMEOUT) == 0


def test_where_a_name_is_long_top_cuts_that_and_no_number(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: [*QUEUES, row("of-a-long-name" * 4, ready=7)]
    with in_a_terminal(broker, "top") as (_process, terminal):
        seen = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", read_until(terminal, "Esc leaves it"))
        for words in ("ready sched", "~123456789", "oldest", "workers", "of-a-", "…"):
            assert words in seen


def test_queues_are_watched_until_ctrl_c(broker: ScriptedBroker, run: Run) -> None:
    with in_a_terminal(broker, "queues", "--watch", "--interval", "0.2") as (process, terminal):
        read_until(terminal, "thumbs")
        broker.on[wire.QUEUES] = lambda _message: [row("another")]
        read_until(terminal, "another")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) in (1, 130)
