"""Orders that take long, from the command line and the library, against a scripted broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clients.scripted_broker import ScriptedBroker
from sluicemq import BadQueueError, Client, UnfinishedError
from sluicemq.cli.app import app
from sluicemq.operation import Operation
from sluicemq.protocol import wire

Run = Callable[..., Result]

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
def run(broker: ScriptedBroker) -> Run:
    """Run a command against the stub."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments])

    return run


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
def test_a_command_whose_order_takes_long_follows_it_to_its_end(
    broker: ScriptedBroker, run: Run, command: list[str]
) -> None:
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
