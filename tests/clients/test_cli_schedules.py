"""``sluicemq schedules`` against a scripted broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clients.scripted_broker import ScriptedBroker
from sluicemq import NotFoundError
from sluicemq.cli.app import app
from sluicemq.protocol import wire

Run = Callable[..., Result]
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


@pytest.fixture
def run(broker: ScriptedBroker) -> Run:
    """Run a command against the stub."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, "schedules", *arguments], input=stdin)

    return run


def test_add_sends_when_and_what_and_tells_the_first_run(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SCHEDULE] = lambda _message: ROW
    told = run("add", "nightly", "mail", "-", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin",
               "--priority", "5", stdin=b"go")  # fmt: skip
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
    assert run("add", "pulse", "mail", "x", "--every", "10", "--misfire", "skip").exit_code == 0
    about = broker.of(wire.SCHEDULE)[0].fields[1]
    assert (about["every"], about["misfire"]) == (10.0, "skip")
    assert not about.keys() & {"cron", "timezone"}


@pytest.mark.parametrize(
    "flags", [[], ["--cron", "* * * * *", "--every", "5"], ["--every", "5", "--timezone", "UTC"]]
)
def test_when_is_one_of_two(run: Run, flags: list[str]) -> None:
    assert run("add", "pulse", "mail", "x", *flags).exit_code == 2


def test_list_shows_a_line_of_each(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SCHEDULE] = lambda _message: [ROW, {**ROW, "name": "pulse", "every": 10.0}]
    shown = run("list").stdout
    assert "0 3 * * * Europe/Berlin" in shown
    assert "every 10 s" in shown
    assert json.loads(run("list", "--json").stdout)["schedules"][0]["pushed"] == 3


@pytest.mark.parametrize(
    ("command", "action"),
    [("delete", wire.REMOVE), ("pause", wire.SUSPEND), ("resume", wire.GO_ON), ("run", wire.RUN)],
)
def test_each_order_names_its_schedule_and_an_unknown_one_is_refused(
    broker: ScriptedBroker, run: Run, command: str, action: str
) -> None:
    broker.on[wire.SCHEDULE] = lambda message: "job-1" if message.fields[0] == wire.RUN else ROW
    assert run(command, "nightly").exit_code == 0
    assert broker.of(wire.SCHEDULE)[0].fields == [action, {"name": "nightly"}]
    broker.on[wire.SCHEDULE] = lambda _message: NotFoundError("there is no schedule 'nightly'")
    refused = run(command, "nightly")
    assert (refused.exit_code, "no schedule" in refused.stderr) == (1, True)
