"""Commands of long orders, schedules and brokers, against a scripted broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from time import time
from typing import Any

import pytest

from clients.cli_runs import Run
from clients.scripted_broker import ScriptedBroker
from sluicemq import BadQueueError, Client, NotFoundError, UnfinishedError
from sluicemq.cli.everywhere import brokers_at
from sluicemq.operation import Operation
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadVerbError, OldBrokerError
from sluicemq.transport.access import Access
from sluicemq.transport.names import Address

GOES_ON = {"task": "a1b2", "done": 500, "total": 3000}
TASK: dict[str, Any] = {
    "id": "a1b2",
    "kind": "purge",
    "queue": "mail",
    "state": "running",
    "done": 500,
    "looked": 0,
    "total": 3000,
    "broker": "host:1",
    "started_at": 1e9,
    "changed_at": 1e9,
}
DONE = {**TASK, "state": "done", "done": 3000, "answer": 3000, "ended_at": 1e9 + 9}


@pytest.fixture
def client(broker: ScriptedBroker) -> Client:
    return Client(endpoint=broker.endpoint)


def goes_on(broker: ScriptedBroker, verb: bytes, *looks: dict[str, Any]) -> None:
    """An order goes on, and is seen like this each time that somebody looks."""
    broker.on[verb] = lambda _message: GOES_ON
    seen = iter(looks)
    broker.on[wire.TASK] = lambda _message: next(seen)


@pytest.mark.parametrize(
    "command",
    [["queues", "purge", "mail"], ["queues", "delete", "mail"], ["dead-letters", "discard", "mail"]],
)
def test_a_long_order_is_followed_to_its_end(broker: ScriptedBroker, run: Run, command: list[str]) -> None:
    verb = {"delete": wire.DELETE, "discard": wire.DISCARD}.get(command[1], wire.PURGE)
    goes_on(broker, verb, TASK, DONE)
    result = run(*command, "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["removed"]) == (0, 3000)
    assert [message.fields for message in broker.of(wire.TASK)] == [["a1b2"], ["a1b2"]]


def test_a_long_redrive_tells_at_its_end_what_could_not_go(broker: ScriptedBroker, run: Run) -> None:
    answer = {"moved": 2999, "left": 1, "refused": [["one", "BAD_FRAMES", "no job"]]}
    goes_on(broker, wire.REDRIVE, {**DONE, "answer": answer})
    result = run("dead-letters", "redrive", "mail", "--all")
    assert result.stdout == "2999 dead letters of mail redriven, 1 left\n"
    assert "not redriven: no job" in result.stderr


def test_an_order_waits_a_second_at_the_broker_and_less_where_answers_are_not_waited_for_so_long(
    broker: ScriptedBroker, run: Run
) -> None:
    run("queues", "purge", "mail", "--yes")
    run("--timeout", "0.5", "queues", "purge", "mail", "--yes")
    assert [message.fields[2] for message in broker.of(wire.PURGE)] == [1.0, 0.25]


def test_ctrl_c_leaves_the_order_to_the_broker_and_says_how_to_end_it(
    broker: ScriptedBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    goes_on(broker, wire.PURGE)
    monkeypatch.setattr(Operation, "result", interrupted)
    result = run("queues", "purge", "mail", "--yes")
    assert result.exit_code == 130
    assert "sluicemq operations cancel a1b2" in result.stderr
    assert broker.of(wire.TCANCEL) == []


def test_a_cancelled_order_is_told_and_ends_with_3(broker: ScriptedBroker, run: Run) -> None:
    goes_on(broker, wire.PURGE, {**TASK, "state": "cancelled", "ended_at": 1e9})
    result = run("queues", "purge", "mail", "--yes")
    assert result.exit_code != 0
    assert "operation a1b2 was cancelled" in result.stderr


def test_tasks_are_listed_shown_and_cancelled(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.TASKS] = lambda _message: [TASK]
    broker.on[wire.TASK] = lambda _message: DONE
    broker.on[wire.TCANCEL] = lambda _message: None
    assert ["a1b2", "purge", "mail", "running", "500", "0", "3000"] in [
        line.split()[:7] for line in run("operations", "list").stdout.splitlines()
    ]
    assert json.loads(run("operations", "list", "--json").stdout)["operations"] == [TASK]
    assert json.loads(run("operations", "show", "a1b2", "--json").stdout) == DONE
    assert ["answer", "3000"] in [
        line.split() for line in run("operations", "show", "a1b2").stdout.splitlines()
    ]
    assert run("operations", "cancel", "a1b2").exit_code == 0
    assert broker.of(wire.TCANCEL)[0].fields == ["a1b2"]


def test_the_library_tells_how_far_the_broker_is(broker: ScriptedBroker, client: Client) -> None:
    goes_on(broker, wire.PURGE, TASK, DONE)
    with client:
        with pytest.raises(UnfinishedError, match="500 of 3000 jobs so far") as raised:
            client.purge("mail")
        assert isinstance(raised.value, TimeoutError)
        assert (raised.value.task, raised.value.done, raised.value.total) == ("a1b2", 500, 3000)
        seen: list[int] = []
        assert client.follow(raised.value.task, lambda task: seen.append(task["done"])) == 3000
        assert seen == [500, 3000]


def test_following_a_task_that_has_failed_raises_why(broker: ScriptedBroker, client: Client) -> None:
    why = {"code": "BAD_QUEUE", "message": "it has workers"}
    broker.on[wire.TASK] = lambda _message: {**TASK, "state": "failed", "error": why, "ended_at": 1e9}
    with client, pytest.raises(BadQueueError, match="it has workers"):
        client.follow("a1b2")


ROW: dict[str, Any] = {
    "name": "nightly",
    "queue": "mail",
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "misfire": "one",
    "next_at": time() + 7300,
    "last_at": None,
    "pushed": 3,
    "paused": False,
    "options": {},
    "from_configuration": False,
}


def test_add_sends_when_and_what_and_tells_the_first_run(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SCHEDULE] = lambda _message: ROW
    when = ("--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--priority", "5")
    told = run("schedules", "add", "nightly", "mail", "-", *when, stdin=b"go")
    assert told.exit_code == 0
    assert "nightly runs next at " in told.stdout
    assert "(in 2 h)" in told.stdout
    [asked] = broker.of(wire.SCHEDULE)
    assert asked.fields == [
        "add",
        {
            "name": "nightly",
            "queue": "mail",
            "payload": b"go",
            "misfire": "one",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "options": {"priority": 5},
        },
    ]


def test_an_interval_is_sent_without_a_time_zone(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SCHEDULE] = lambda _message: ROW
    assert run("schedules", "add", "pulse", "mail", "x", "--every", "10", "--misfire", "skip").exit_code == 0
    about = broker.of(wire.SCHEDULE)[0].fields[1]
    assert (about["every"], about["misfire"]) == (10.0, "skip")
    assert not about.keys() & {"cron", "timezone"}


@pytest.mark.parametrize(
    "flags", [[], ["--cron", "* * * * *", "--every", "5"], ["--every", "5", "--timezone", "UTC"]]
)
def test_when_is_one_of_two(run: Run, flags: list[str]) -> None:
    assert run("schedules", "add", "pulse", "mail", "x", *flags).exit_code == 2


def test_list_shows_a_line_of_each(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SCHEDULE] = lambda _message: [ROW, {**ROW, "name": "pulse", "every": 10.0}]
    shown = run("schedules", "list").stdout
    assert "0 3 * * * Europe/Berlin" in shown
    assert "every 10 s" in shown
    assert json.loads(run("schedules", "list", "--json").stdout)["schedules"][0]["pushed"] == 3


@pytest.mark.parametrize(
    ("command", "action"),
    [("delete", wire.REMOVE), ("pause", wire.SUSPEND), ("resume", wire.GO_ON), ("run", wire.RUN)],
)
def test_each_order_names_its_schedule_and_an_unknown_one_is_refused(
    broker: ScriptedBroker, run: Run, command: str, action: str
) -> None:
    broker.on[wire.SCHEDULE] = lambda message: "job-1" if message.fields[0] == wire.RUN else ROW
    assert run("schedules", command, "nightly").exit_code == 0
    assert broker.of(wire.SCHEDULE)[0].fields == [action, {"name": "nightly"}]
    broker.on[wire.SCHEDULE] = lambda _message: NotFoundError("there is no schedule 'nightly'")
    refused = run("schedules", command, "nightly")
    assert (refused.exit_code, "no schedule" in refused.stderr) == (1, True)


NEW: dict[str, Any] = {
    "name": "a:1", "since": 1e9, "seen": 1e9 + 5, "ended": None, "here": True, "version": "0.3.0",
    "reads": [2, 3],
}  # fmt: skip
OLD = {**NEW, "name": "b:2", "here": False, "version": "", "reads": [2, 2]}
SILENT = {**OLD, "name": "c:3", "ended": 1e9 + 60}
FOUND = {"brokers": [NEW, OLD, SILENT], "schema": 2, "newest": 3}


def finds(broker: ScriptedBroker, schema: int = 2) -> None:
    broker.on[wire.BROKERS] = lambda _message: {**FOUND, "schema": schema}
    broker.on[wire.UPGRADE] = lambda _message: {"schema": 3, "before": schema}


def test_brokers_are_listed_with_their_versions_and_what_they_read(broker: ScriptedBroker, run: Run) -> None:
    finds(broker)
    result = run("brokers")
    _, *rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["a:1", "0.3.0"], ["b:2", "older"], ["c:3", "older"]]
    assert ["2 to 3" in line for line in result.stdout.splitlines()[1:]] == [True, False, False]
    assert [line.rstrip().split()[-1] for line in result.stdout.splitlines()[1:]] == [
        "here",
        "lives",
        "silent",
    ]
    assert "schema 2; sluicemq brokers upgrade raises it to 3" in result.stderr
    assert json.loads(run("brokers", "--json").stdout) == FOUND


def test_an_upgrade_shows_the_brokers_and_asks(broker: ScriptedBroker, run: Run) -> None:
    finds(broker)
    refused = run("brokers", "upgrade", stdin=b"n\n")
    assert refused.exit_code == 1
    assert "b:2" in refused.stderr
    assert "from schema 2 to 3, for good?" in refused.stderr
    assert broker.of(wire.UPGRADE) == []
    assert run("brokers", "upgrade", stdin=b"y\n").stdout == "the store has schema 3 now\n"
    assert json.loads(run("brokers", "upgrade", "--yes", "--json").stdout) == {"schema": 3, "before": 2}


def test_an_upgrade_with_nothing_to_do_asks_nothing(broker: ScriptedBroker, run: Run) -> None:
    finds(broker, schema=3)
    result = run("brokers", "upgrade")
    assert (result.exit_code, result.stdout) == (0, "the store had schema 3 already\n")


def test_a_refusal_says_which_broker_is_too_old(broker: ScriptedBroker, run: Run) -> None:
    finds(broker)
    broker.on[wire.UPGRADE] = lambda _message: OldBrokerError("schema 3 can't be read by b:2")
    result = run("brokers", "upgrade", "--yes", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"] == {
        "code": "OLD_BROKER", "message": "schema 3 can't be read by b:2",
    }  # fmt: skip


def test_a_broker_that_is_too_old_to_say_is_named_so(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.BROKERS] = lambda _message: BadVerbError("no such verb")
    for command in ("brokers", "upgrade"):
        result = run(command)
        assert result.exit_code == 1
        assert "older version" in result.stderr


LONG = 30.0


def test_a_name_stands_for_the_brokers_at_all_of_its_addresses() -> None:
    def resolve(host: str) -> Sequence[Address]:
        if host == "b.example":
            raise OSError("no such name")
        return [Address("10.0.0.1", ipv6=False), Address("[fd00::1]", ipv6=True)]

    given = (
        "tcp://a:1",
        "dns+tcp://a.example:2",
        "dns+tcp://b.example:3",
        "dns+tcp://10.0.0.9:0;a.example:4",
    )
    assert brokers_at(Access(given, resolve=resolve), LONG) == [
        "tcp://a:1",
        "tcp://10.0.0.1:2",
        "tcp://[fd00::1]:2",
        "dns+tcp://b.example:3",
        "tcp://10.0.0.9:0;10.0.0.1:4",
    ]


def test_no_answer_of_dns_holds_a_command_up() -> None:
    answers = threading.Event()

    def resolve(_host: str) -> Sequence[Address]:
        answers.wait()
        return []

    found = brokers_at(Access(("dns+tcp://a.example:1", "tcp://b:2"), resolve=resolve), 0.1)
    # Then it goes on while the lookup still waits
    assert found == ["dns+tcp://a.example:1", "tcp://b:2"]
    assert not answers.is_set()
    answers.set()
