"""Commands that show and order: queues, stats, peek, purge, delete, cancel."""

import json
import re
from datetime import UTC, datetime
from time import time

import pytest
from click.testing import CliRunner

from clients.cli_runs import Run, nobody
from clients.scripted_broker import ScriptedBroker
from sluicemq import BadQueueError, NotFoundError, UnavailableError
from sluicemq.cli.app import app
from sluicemq.cli.output import shown as shown_value
from sluicemq.protocol import wire

COUNTS = {"scheduled": 1, "reserved": 0, "done": 0, "dead": 2}


QUEUES = [
    {"name": "mail", "ready": 12, **COUNTS, "workers": 1, "exact": True},
    {"name": "thumbs", "ready": 0, **COUNTS, "workers": 4, "exact": False},
]


def test_queues_are_shown_as_a_table_of_whatever_the_broker_tells(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: QUEUES
    lines = run("queues").stdout.splitlines()
    assert lines[0].split() == ["name", "ready", "sched", "resv", "dead", "workers"]
    assert lines[1].split() == ["mail", "12", "1", "0", "2", "1"]
    assert lines[2].split()[0] == "thumbs"


LISTS: dict[str, tuple[bytes, list[str]]] = {
    "read queues": (wire.QUEUES, ["queues"]),
    "read workers": (wire.WORKERS, ["workers"]),
    "read kinds": (wire.KINDS, ["kinds"]),
    "subscribe streams": (wire.STREAMS, ["streams", "list"]),
    "subscribe subscriptions": (wire.SUBS, ["subscriptions", "list"]),
    "manage schedules": (wire.SCHEDULE, ["schedules", "list"]),
    "manage bulk operations": (wire.TASKS, ["operations", "list"]),
}


@pytest.mark.parametrize("listed", LISTS)
def test_an_empty_list_says_what_a_client_may_not_see(broker: ScriptedBroker, run: Run, listed: str) -> None:
    action, _, things = listed.partition(" ")
    verb, words = LISTS[listed]
    broker.on[verb] = lambda _message: []
    assert "may" not in run(*words).stderr
    broker.hello["permissions"] = {"push": ["mail.*"]}
    told = f"you may not see {things}: that takes the permission {action}, and you have push=mail.*"
    assert told in run(*words).stderr
    broker.hello["permissions"] = {action: ["mail.*", "tidy"]}
    told = f"no {things} that you may see: you may {action} those named mail.*, tidy"
    assert told in run(*words).stderr


def test_queues_as_json_are_one_object(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: QUEUES
    assert json.loads(run("--json", "queues").stdout) == {"queues": QUEUES}


def test_stats_show_the_broker_its_counters_and_its_queues(broker: ScriptedBroker, run: Run) -> None:
    stats = {"broker": {"id": "b1"}, "counters": {"pushed": 7, "replies_dropped": 0}, "queues": QUEUES}
    broker.on[wire.STATS] = lambda _message: stats
    shown = run("stats").stdout
    for word in ("broker", "b1", "replies_dropped", "pushed", "thumbs"):
        assert word in shown
    assert json.loads(run("--json", "stats").stdout) == stats


def test_peek_shows_jobs_with_times_and_the_beginning_of_payloads(broker: ScriptedBroker, run: Run) -> None:
    job = {
        "id": "one", "state": "dead", "payload": b"\xffx" + b"y" * 100, "headers": {"a": 1}, "priority": 0,
        "attempts": 5, "created_at": 0, "eligible_at": 1.5, "expires_at": None, "errors": [],
    }  # fmt: skip
    broker.on[wire.PEEK] = lambda _message: [job]
    shown = run("jobs", "list", "mail", "--state", "dead", "--limit", "3").stdout
    assert broker.of(wire.PEEK)[0].fields == ["mail", "dead", 3, {"first": 256}]
    assert shown.split()[:5] == ["id", "attempts", "age", "headers", "payload"]
    assert '{"a": 1}' in shown
    assert "\\xffxyyy" in shown
    assert "yyy…" in shown
    as_json = json.loads(run("--json", "jobs", "list", "mail").stdout)
    assert as_json["jobs"][0]["payload"]["base64"].startswith("/3h5")


def test_peek_shows_the_beginning_of_a_long_payload(broker: ScriptedBroker, run: Run) -> None:
    # Given a job of an older broker, which sends all of it, and one whose payload was left out
    whole = {"id": "whole", "state": "ready", "payload": bytes(8_000_000)}
    left_out = {"id": "left", "state": "ready", "payload_bytes": 12_000_000}
    broker.on[wire.PEEK] = lambda _message: [whole, left_out]
    shown = run("jobs", "list", "mail").stdout
    assert "\\x00\\x00" in shown
    assert "12000000 bytes" in shown


class Long(bytes):
    """A payload of which the beginning alone may be decoded: all of it took a microsecond a byte."""

    def decode(self, *_args: object, **_options: object) -> str:
        raise AssertionError("all of it is decoded")


def test_no_more_of_a_long_payload_is_decoded_than_is_shown() -> None:
    assert shown_value("payload", Long(b"\xff" + b"y" * 1_000)).startswith("\\xffyyy")


def test_peek_shows_when_a_job_is_due_and_why_it_failed_last(broker: ScriptedBroker, run: Run) -> None:
    reasons = [{"reason": "first", "attempt": 1}, {"reason": "disk full", "attempt": 2}]
    job = {"id": "one", "state": "ready", "eligible_at": time() + 3 * 3600 + 60, "errors": reasons}
    broker.on[wire.PEEK] = lambda _message: [job]
    shown = run("jobs", "list", "mail").stdout
    assert shown.split("\n")[0].split() == ["id", "due", "last", "error"]
    assert shown.split("\n")[1].split() == ["one", "in", "3", "h", "disk", "full"]


def test_narrow_peeks_keep_ids(broker: ScriptedBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "30")
    job = {"id": "i" * 50, "attempts": 1, "payload": b"p " * 40, "headers": {"key": "value " * 20}}
    broker.on[wire.PEEK] = lambda _message: [job]
    assert "i" * 50 in run("jobs", "list", "mail").stdout


def test_nothing_shown_can_command_the_terminal(broker: ScriptedBroker, run: Run) -> None:
    evil = "\x1b[2J\x9b2J\r\u202e"
    job = {"id": evil, "payload": evil.encode(), "headers": {evil: evil}, "errors": [{"reason": evil}]}
    broker.on[wire.PEEK] = lambda _message: [job]
    broker.on[wire.QUEUES] = lambda _message: [{"name": evil}]
    broker.on[wire.STATS] = lambda _message: {evil: {evil: evil}}
    broker.on[wire.CANCEL] = lambda _message: NotFoundError(evil)
    for command in (
        ["jobs", "list", "q"],
        ["queues"],
        ["stats"],
        ["jobs", "cancel", "q", "x"],
        ["--json", "jobs", "list", "q"],
    ):
        result = run(*command)
        assert result.output
        assert all(line.isprintable() for line in result.output.split("\n")), command
    as_json = json.loads(run("--json", "jobs", "list", "q").stdout)
    assert as_json["jobs"][0]["id"] == evil


def test_queues_asks_for_one_queue_alone(broker: ScriptedBroker, run: Run) -> None:
    no_queue = BadQueueError("there is no queue 'nosuch'")
    broker.on[wire.QUEUE] = lambda message: QUEUES[1] if message.fields == ["thumbs"] else no_queue
    assert json.loads(run("queues", "list", "thumbs", "--json").stdout) == {"queues": QUEUES[1:]}
    unknown = run("queues", "list", "nosuch")
    assert unknown.exit_code == 1
    assert unknown.stderr == "sluicemq: there is no queue 'nosuch'\n"
    assert broker.of(wire.QUEUES) == []


def test_the_shared_options_may_follow_the_command(broker: ScriptedBroker) -> None:
    arguments = ["--endpoint", nobody(), "ping", "--endpoint", broker.endpoint, "--timeout", "60", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert json.loads(result.stdout)["endpoint"] == broker.endpoint


def test_an_error_is_json_when_the_option_follows_the_command(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.CANCEL] = lambda _message: NotFoundError("no job")
    assert json.loads(run("jobs", "cancel", "q", "x", "--json").stdout)["error"]["code"] == "NOT_FOUND"


def test_purge_asks_first_and_a_no_ends_with_1(broker: ScriptedBroker, run: Run) -> None:
    result = run("queues", "purge", "mail", stdin=b"n\n")
    assert result.exit_code == 1
    assert "Remove all ready jobs of queue mail?" in result.stderr
    assert broker.of(wire.PURGE) == []


def test_purge_and_delete_do_it_after_a_yes(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PURGE] = broker.on[wire.DELETE] = lambda _message: 12
    assert run("queues", "purge", "mail", stdin=b"y\n").stdout == "removed 12 ready jobs of mail\n"
    assert (
        run("queues", "purge", "mail", "--state", "dead", "--yes").stdout == "removed 12 dead jobs of mail\n"
    )
    assert run("queues", "delete", "mail", "--yes").stdout == "deleted mail with 12 jobs\n"
    assert [message.fields[:2] for message in broker.of(wire.PURGE)] == [["mail", "ready"], ["mail", "dead"]]
    assert broker.of(wire.DELETE)[0].fields[:1] == ["mail"]


def test_cancel_names_the_job(broker: ScriptedBroker, run: Run) -> None:
    assert json.loads(run("--json", "jobs", "cancel", "mail", "one").stdout) == {"queue": "mail", "id": "one"}
    assert broker.of(wire.CANCEL)[0].fields == ["mail", "one"]


def test_a_refusal_is_one_line_and_with_json_also_an_object(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.CANCEL] = lambda _message: NotFoundError("no job 'one' in mail")
    result = run("--json", "jobs", "cancel", "mail", "one")
    assert result.exit_code == 1
    assert result.stderr == "sluicemq: no job 'one' in mail\n"
    assert json.loads(result.stdout) == {"error": {"code": "NOT_FOUND", "message": "no job 'one' in mail"}}


def test_peek_says_that_there_are_more_and_why_they_are_not_shown(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PEEK] = lambda _message: [{"id": "one"}, {"id": "two"}]
    broker.on[wire.QUEUE] = lambda _message: {"name": "q", "ready": 37}
    assert run("jobs", "list", "q", "--limit", "2").stderr == "2 of 37: --limit shows more\n"
    assert (
        run("jobs", "list", "q", "--limit", "100").stderr
        == "2 of 37: more are too large to be shown at once\n"
    )
    assert json.loads(run("--json", "jobs", "list", "q").stdout)["more"] is True
    broker.on[wire.QUEUE] = lambda _message: {"name": "q", "ready": 2}
    assert run("jobs", "list", "q").stderr == ""


def test_peek_at_nothing_says_what_there_is_and_when_one_is_due(broker: ScriptedBroker, run: Run) -> None:
    due = time() + 600
    broker.on[wire.PEEK] = lambda message: (
        [{"id": "one", "eligible_at": due}] if message.fields[1] == "scheduled" else []
    )
    broker.on[wire.QUEUE] = lambda _message: {"name": "q", "ready": 0, "scheduled": 1, "dead": 3}
    at = datetime.fromtimestamp(due, UTC).isoformat(sep=" ", timespec="seconds")
    said = f"no ready jobs in q; 1 scheduled, the next due in 10 min ({at}); 3 dead\n"
    assert run("jobs", "list", "q").stderr == said


def test_the_last_ones_are_asked_for_from_the_end(broker: ScriptedBroker, run: Run) -> None:
    run("jobs", "list", "q", "--newest")
    assert broker.of(wire.PEEK)[0].fields[2] == -10


@pytest.mark.parametrize(
    "arguments", [["queues"], ["queues", "mail"], ["top", "--once"], ["top", "mail", "--once"]]
)
def test_queues_are_shown_as_last_counted(broker: ScriptedBroker, run: Run, arguments: list[str]) -> None:
    # Given a broker whose MongoDB does not answer
    away = "MongoDB has not answered for 9.1 s"
    about = {"version": "1", "pid": 1, "uptime": 1.0, "connections": 1, "brokers": 1, "store": away}
    counts = dict.fromkeys(("ready", "scheduled", "reserved", "done", "dead", "workers"), 0)
    mail = {"name": "mail", **counts, "ready": 41, "counted_ago": 9.0}
    for verb in (wire.QUEUES, wire.QUEUE, wire.PEEK):
        broker.on[verb] = lambda _message: UnavailableError("MongoDB does not answer: nothing can be counted")
    broker.on[wire.STATS] = lambda _message: {"broker": about, "counters": {}, "queues": [mail]}
    broker.on[wire.COUNTERS] = lambda _message: {"broker": about, "counters": {}}
    broker.on[wire.WORKERS] = lambda _message: []
    # Then its last counts are shown, and that they are
    result = run(*arguments)
    assert re.search(r"mail +41", result.stdout)
    assert away in result.output
    assert result.exit_code == (4 if arguments[0] == "queues" else 0)


@pytest.mark.parametrize(
    ("arguments", "ordered"),
    [
        (["jobs", "show", "q", "x"], False),
        (["jobs", "list", "q"], False),
        (["schedules", "list"], False),
        (["streams", "list"], False),
        (["operations", "list"], False),
        (["jobs", "cancel", "q", "x"], True),
        (["queues", "pause", "q"], True),
        (["schedules", "delete", "x"], True),
        (["queues", "purge", "q", "--yes"], True),
    ],
)
def test_only_of_an_order_it_is_said_that_it_may_still_be_carried_out(
    broker: ScriptedBroker, run: Run, arguments: list[str], *, ordered: bool
) -> None:
    away = "MongoDB has not answered for 9.1 s"
    health = {"store": away, "store_silent": 9.1}
    for verb in (
        wire.SHOW,
        wire.PEEK,
        wire.SCHEDULE,
        wire.STREAMS,
        wire.TASKS,
        wire.CANCEL,
        wire.PAUSE,
        wire.PURGE,
    ):
        broker.on[verb] = lambda _message: UnavailableError("no primary")
    broker.on[wire.PING] = lambda _message: health
    result = run(*arguments)
    assert result.exit_code == 4
    assert away in result.stderr
    assert ("may still be carried out" in result.stderr) == ordered


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["peek", "mail"], "jobs list"),
        (["dead", "list", "mail"], "dead-letters list"),
        (["done", "list", "mail"], "jobs list --state done"),
        (["tasks"], "operations list"),
        (["queues", "mail"], "queues list mail"),
    ],
)
def test_an_old_command_says_its_new_form(broker: ScriptedBroker, run: Run, old: list[str], new: str) -> None:
    broker.on[wire.PEEK] = broker.on[wire.TASKS] = lambda _message: []
    broker.on[wire.QUEUE] = lambda _message: QUEUES[0]
    broker.on[wire.DEAD] = lambda _message: {"jobs": [], "next": None}
    result = run(*old, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("sluicemq: `sluicemq ")
    assert result.stderr.endswith(f"` is now `sluicemq {new}`\n")
