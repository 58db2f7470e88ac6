"""The commands of an operator against a scripted broker: show, change, redrive, pause; and the library's."""

import json
from datetime import UTC, datetime
from time import time
from typing import Any

import pytest

from clients.cli_runs import Run
from clients.scripted_broker import ScriptedBroker
from sluicemq import Client, NotFoundError
from sluicemq.protocol import wire


def a_job(**fields: Any) -> dict[str, Any]:
    errors = [
        {"at": time() - 60, "attempt": 1, "worker": "w1", "reason": "timeout"},
        {"at": time(), "reason": "no attempt is left"},
    ]
    job = {"id": "one", "state": "dead", "attempts": 5, "created_at": time() - 7200, "ended_at": time() - 60}
    return {**job, "headers": {"a": 1}, "errors": errors, "payload": b"pay\x1bload", **fields}


# --------------------------------------------------------------------- single jobs


def test_show_tells_a_job_with_its_times_and_its_history(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SHOW] = lambda _message: a_job()
    shown = run("jobs", "show", "mail", "one").stdout
    assert broker.of(wire.SHOW)[0].fields == ["mail", "one"]
    lines = [line.split() for line in shown.splitlines()]
    assert ["id", "one"] in lines
    assert ["state", "dead"] in lines
    assert next(line for line in lines if line[:1] == ["created_at"])[-3:] == ["(2", "h", "ago)"]
    assert ["at", "attempt", "worker", "reason"] in lines
    assert next(line for line in lines if line[-1:] == ["timeout"])[2:4] == ["1", "w1"]


def test_show_shows_the_payload_only_if_asked(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SHOW] = lambda message: a_job(state="done" if message.fields[1] == "two" else "dead")
    for command in (
        ["jobs", "show", "mail", "one"],
        ["jobs", "show", "mail", "one"],
        ["jobs", "show", "mail", "two"],
    ):
        shown, asked = run(*command).stdout, run(*command, "--payload").stdout
        assert "load: pay" not in shown
        assert ["payload_bytes", "8"] in [line.split() for line in shown.splitlines()]
        assert "payload: pay\\x1bload" in asked


def test_show_as_json_is_the_whole_job_with_its_payload_if_asked(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SHOW] = lambda _message: a_job(payload=b"x" * 10_000)
    shown = json.loads(run("jobs", "show", "mail", "one", "--json", "--payload").stdout)
    assert (shown["queue"], len(shown["job"]["payload"])) == ("mail", 10_000)
    without = json.loads(run("jobs", "show", "mail", "one", "--json").stdout)["job"]
    assert (without.get("payload"), without["payload_bytes"]) == (None, 10_000)


def test_show_cuts_a_long_payload_and_says_so(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.SHOW] = lambda _message: a_job(payload=b"x" * 10_000)
    shown = run("jobs", "show", "mail", "one", "--payload").stdout
    assert len(shown) < 4000
    assert "(10000 bytes; --json shows all)" in shown


@pytest.mark.parametrize(
    ("command", "verb", "fields", "said"),
    [
        (["jobs", "promote", "mail", "one"], wire.PROMOTE, ["mail", "one"], "promoted one: it is due now\n"),
        (
            ["jobs", "change", "mail", "one", "--priority", "0", "--delay", "1.5"],
            wire.CHANGE,
            ["mail", "one", {"priority": 0, "delay": 1.5}],
            "changed one\n",
        ),
        (
            ["jobs", "change", "mail", "one", "--delay", "0"],
            wire.CHANGE,
            ["mail", "one", {"delay": 0.0}],
            "changed one\n",
        ),
    ],
)
def test_a_job_that_waits_is_promoted_or_changed(
    broker: ScriptedBroker, run: Run, command: list[str], verb: bytes, fields: list[Any], said: str
) -> None:
    assert run(*command).stdout == said
    assert broker.of(verb)[0].fields == fields
    assert json.loads(run(*command, "--json").stdout) == {"queue": "mail", "id": "one"}


def test_a_refused_change_ends_with_1(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.CHANGE] = lambda _message: NotFoundError("job 'one' is reserved")
    result = run("jobs", "change", "mail", "one", "--delay", "1")
    assert (result.exit_code, result.stderr) == (1, "sluicemq: job 'one' is reserved\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "change", "mail", "one"],
        ["jobs", "change", "mail", "one", "--priority", "256"],
        ["jobs", "change", "mail", "one", "--delay", "-1"],
        ["dead"],
        ["dead-letters", "redrive", "mail"],
        ["dead-letters", "redrive", "mail", "one", "--all"],
        ["dead-letters", "redrive", "mail", "--all", "--limit", "0"],
        ["dead-letters", "redrive", "mail", "--all", "--older-than", "5"],
        ["dead-letters", "discard", "mail", "one", "--reason", "disk"],
        ["done", "redrive", "mail"],
    ],
)
def test_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


# -------------------------------------------------------------------- dead and done


@pytest.mark.parametrize("state", ["dead", "done"])
def test_what_has_ended_is_listed_with_its_end(broker: ScriptedBroker, run: Run, state: str) -> None:
    broker.on[wire.PEEK] = lambda _message: [a_job(state=state, result=b"ok")]
    oldest = ["--oldest"] if state == "dead" else []
    lines = run(state, "list", "mail", *oldest, "--limit", "3").stdout.splitlines()
    assert broker.of(wire.PEEK)[0].fields == ["mail", state, 3, {"first": 256}]
    assert lines[0].split() == [
        "id",
        "attempts",
        "age",
        "ended",
        "headers",
        "payload",
        "result",
        "last",
        "error",
    ]
    assert lines[1].split()[:7] == ["one", "5", "2", "h", "1", "min", "ago"]
    assert json.loads(run(state, "list", "mail", *oldest, "--json").stdout)["jobs"][0]["id"] == "one"


def test_dead_letters_of_all_queues_are_listed_newest_first(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: [
        {"name": "mail", "dead": 1},
        {"name": "sms", "dead": 2},
        {"name": "idle", "dead": 0},
    ]
    ended = {"mail": [50.0], "sms": [90.0, 10.0]}
    reason = "Traceback (most recent call last):\n  File"
    broker.on[wire.DEAD] = lambda message: {
        "jobs": [
            a_job(id=f"{message.fields[0]}-{at:.0f}", state="dead", ended_at=at, errors=[{"reason": reason}])
            for at in ended[message.fields[0]]
        ],
        "next": None,
    }
    result = run("dead-letters", "list", "--limit", "2", "--reason", "disk", "--since", "2h", "--kind", "k")
    rows = result.stdout.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["sms", "sms-90"], ["mail", "mail-50"]]
    assert rows[1].endswith("last): …")
    assert "--limit shows more" in result.stderr
    first = broker.of(wire.DEAD)[0].fields
    assert first[:2] == ["mail", "list"]
    assert (first[2]["reason"], first[2]["kind"]) == ("disk", "k")
    assert time() - first[2]["since"] == pytest.approx(7200, abs=60)
    lines = run("dead-letters", "export").stdout.splitlines()
    assert [json.loads(line)["queue"] for line in lines] == ["mail", "sms", "sms"]
    assert broker.of(wire.DEAD)[-1].fields[1] == "whole"
    assert run("dead-letters", "list", "--oldest").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["--all"], ["mail", {}, None]),
        (["one", "two"], ["mail", {"ids": ["one", "two"]}, None]),
        (["--reason", "disk", "--limit", "5"], ["mail", {"reason": "disk", "limit": 5}, None]),
        (["--all", "--to", "late"], ["mail", {}, "late"]),
    ],
)
def test_redrive_sends_which_and_where_to(
    broker: ScriptedBroker, run: Run, arguments: list[str], fields: list[Any]
) -> None:
    broker.on[wire.REDRIVE] = lambda _message: {"moved": 0, "left": 3, "refused": []}
    result = run("dead-letters", "redrive", "mail", *arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith("0 dead letters of mail redriven")
    assert result.stdout.endswith(", 3 left\n")
    assert broker.of(wire.REDRIVE)[0].fields[:3] == fields


def test_an_id_that_can_not_be_redriven_is_told_and_ends_with_1(broker: ScriptedBroker, run: Run) -> None:
    refused = [["two", "NOT_FOUND", "job 'two' is ready"]]
    broker.on[wire.REDRIVE] = lambda _message: {"moved": 1, "left": 0, "refused": refused}
    result = run("dead-letters", "redrive", "mail", "one", "two", "--json")
    assert (result.exit_code, result.stderr) == (1, "not redriven: job 'two' is ready\n")
    assert json.loads(result.stdout) == {
        "queue": "mail", "to": None, "moved": 1, "left": 0, "refused": refused,
    }  # fmt: skip
    assert run("dead-letters", "redrive", "mail", "--all").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "question", "which"),
    [
        ([], "all dead letters", {}),
        (["--limit", "5"], "those dead letters", {"limit": 5}),
        (["one", "two"], "2 dead letters", {"ids": ["one", "two"]}),
        (["--reason", "disk"], "those dead letters", {"reason": "disk"}),
    ],
)
def test_dead_purge_asks_first_and_sends_which(
    broker: ScriptedBroker, run: Run, arguments: list[str], question: str, which: dict[str, Any]
) -> None:
    broker.on[wire.DISCARD] = lambda _message: 7
    asked = run("dead-letters", "discard", "mail", *arguments, stdin=b"n\n")
    assert (asked.exit_code, question in asked.stderr) == (1, True)
    assert broker.of(wire.DISCARD) == []
    told = run("dead-letters", "discard", "mail", *arguments, "--yes").stdout
    assert told == "removed 7 dead letters of mail\n"
    assert broker.of(wire.DISCARD)[0].fields[:2] == ["mail", which]


@pytest.mark.parametrize("verb", [wire.REDRIVE, wire.DISCARD])
def test_dead_letters_are_chosen_by_when_they_died(broker: ScriptedBroker, run: Run, verb: bytes) -> None:
    command = ["redrive", "mail"] if verb == wire.REDRIVE else ["discard", "mail", "--yes"]
    broker.on[wire.REDRIVE] = lambda _message: {"moved": 0, "left": 0, "refused": []}
    broker.on[wire.DISCARD] = lambda _message: 0
    before = time()
    assert run("dead-letters", *command, "--newer-than", "60", "--older-than", "20").exit_code == 0
    (asked,) = broker.of(verb)
    assert before <= asked.fields[1]["since"] + 60 <= time()
    assert before <= asked.fields[1]["until"] + 20 <= time()


# ------------------------------------------------------------------ pause and queues


@pytest.mark.parametrize(
    ("flags", "whats"),
    [([], ["delivery"]), (["--intake"], ["intake"]), (["--intake", "--delivery"], ["delivery", "intake"])],
)
def test_pause_and_resume_send_what(
    broker: ScriptedBroker, run: Run, flags: list[str], whats: list[str]
) -> None:
    broker.on[wire.PAUSE] = lambda message: ["delivery", "intake"][: 1 + (message.fields[1] == "intake")]
    broker.on[wire.RESUME] = lambda _message: ["intake"]
    assert run("queues", "pause", "mail", *flags).stdout.startswith("paused in mail: delivery")
    assert [message.fields for message in broker.of(wire.PAUSE)] == [["mail", what] for what in whats]
    resumed = run("queues", "resume", "mail", *flags).stdout
    assert resumed == f"resumed in mail: {' and '.join(whats)}; still paused: intake\n"
    assert [message.fields for message in broker.of(wire.RESUME)] == [["mail", what] for what in whats]
    assert json.loads(run("queues", "resume", "mail", "--json").stdout) == {
        "queue": "mail",
        "paused": ["intake"],
    }


def test_settings_of_a_queue_are_set_taken_back_and_shown(broker: ScriptedBroker, run: Run) -> None:
    of_mongodb = {"key": "max_running", "value": 5, "source": "mongodb", "file": None}
    of_file = {"key": "weights", "value": {"acme": 3}, "source": "file"}
    differs = {"queue": "mail", "key": "ttl", "values": {"a:1": 60.0, "b:2": None}}
    broker.on[wire.SET] = broker.on[wire.UNSET] = lambda _message: [of_mongodb]
    broker.on[wire.SETTINGS] = lambda _message: {"settings": [of_mongodb, of_file], "differs": [differs]}

    line = "mail: max_running = 5 (mongodb; the file says none)\n"
    assert run("queues", "set-settings", "mail", "max_running", "5", "ttl", "none").stdout == line
    assert run("queues", "unset-settings", "mail", "max_running", "ttl").stdout == line
    assert [job.fields for job in broker.of(wire.SET)] == [["mail", {"max_running": "5", "ttl": "none"}]]
    assert [job.fields for job in broker.of(wire.UNSET)] == [["mail", ["max_running", "ttl"]]]
    assert json.loads(run("queues", "set-settings", "*", "ttl", "1h", "--json").stdout) == {
        "queue": "*", "settings": [of_mongodb],
    }  # fmt: skip
    shown = run("queues", "settings", "mail").stdout
    for name in ("max_running", "none", '{"acme": 3}', "file", "brokers differ", "a:1", "60.0"):
        assert name in shown
    told = json.loads(run("queues", "settings", "mail", "--json").stdout)
    assert told == {"queue": "mail", "settings": [of_mongodb, of_file], "differs": [differs]}
    assert run("queues", "set-settings", "mail", "max_running").exit_code == 2


def test_queues_mark_estimates_and_tell_age_rates_and_pauses(broker: ScriptedBroker, run: Run) -> None:
    counts = {"ready": 48_000, "scheduled": 9_999, "reserved": 0, "done": 0, "dead": 10_000}
    rates = {"pushed": 1000.04, "delivered": 11.0, "committed": 10.26}
    row = {"name": "mail", **counts, "exact": False, "oldest_ready_age": 7300.0, "rates": rates}
    rows = [
        {**row, "estimates": ["ready", "dead"], "counted_ago": 2.5, "paused": ["delivery"], "new": 1},
        {**row, "exact": True, "estimates": [], "paused": [], "oldest_ready_age": None},
    ]
    broker.on[wire.QUEUES] = lambda _message: rows
    head, first, second = run("queues").stdout.splitlines()
    assert head.split() == [
        "name", "ready", "sched", "resv", "dead", "oldest", "in/s", "out/s", "paused", "new",
    ]  # fmt: skip
    assert first.split() == [
        "mail", "~48000", "9999", "0", "~10000", "2", "h", "1000", "10.3", "delivery", "1",
    ]  # fmt: skip
    assert second.split() == ["mail", "48000", "9999", "0", "10000", "-", "1000", "10.3", "-", "-"]
    assert json.loads(run("queues", "--json").stdout) == {"queues": rows}


# ----------------------------------------------------------------------- the library


def test_the_library_says_when_dead_letters_died_in_unix_seconds(broker: ScriptedBroker) -> None:
    broker.on[wire.DISCARD] = lambda _message: 3
    with Client(timeout=60, endpoint=broker.endpoint) as client:
        assert (
            client.dead_letters.discard(
                "mail", since=datetime.fromtimestamp(5, UTC), until=7.5, reason=None
            ).result()
            == 3
        )
    assert broker.of(wire.DISCARD)[0].fields[:2] == ["mail", {"since": 5.0, "until": 7.5}]


def test_the_library_redrives_ids_in_one_request(broker: ScriptedBroker) -> None:
    broker.on[wire.REDRIVE] = lambda _message: {"moved": 1, "left": 0, "refused": []}
    with Client(endpoint=broker.endpoint) as client:
        client.dead_letters.redrive("mail", ("one",), to="late").result()
    assert [message.fields[:3] for message in broker.of(wire.REDRIVE)] == [["mail", {"ids": ["one"]}, "late"]]
