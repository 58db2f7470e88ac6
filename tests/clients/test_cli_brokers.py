"""``sluicemq brokers`` and ``upgrade``, against a scripted broker."""

from __future__ import annotations

import json
from typing import Any

from clients.cli_runs import Run
from clients.scripted_broker import ScriptedBroker
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadVerbError, OldBrokerError

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
