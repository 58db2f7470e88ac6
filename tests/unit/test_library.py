"""The library: rows, errors, a job for a test, one table of nouns and verbs."""

import inspect
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest

from reference import site
from sluicemq import BadFramesError, Job
from sluicemq.cli.app import SECTIONS, app
from sluicemq.cli.former import FORMER
from sluicemq.cli.nouns import Noun
from sluicemq.namespaces import Namespaces
from sluicemq.namespaces.calls import Calls
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import errors, rows, wire
from sluicemq.protocol.rows import BrokerRow, EventRow, JobRow, RedriveRow, Row, ScheduleRow
from sluicemq.protocol.verbs import VERBS, Verb

BROKER: dict[str, Any] = {
    "name": "host:1", "since": 1, "seen": 2.5, "ended": None, "here": True, "version": "1", "reads": (2, 3),
}  # fmt: skip
ALL = [var for var in vars(rows).values() if isinstance(var, type) and issubclass(var, Row)]


def test_a_newer_broker_may_send_more() -> None:
    row = rows.from_wire(BrokerRow, {**BROKER, "colour": "red"})
    assert row == rows.from_wire(BrokerRow, BROKER)
    assert (row.name, row.reads) == ("host:1", (2, 3))


def test_an_older_broker_may_send_less() -> None:
    schedule = {
        "name": "nightly",
        "queue": "q",
        "next_at": 1.0,
        "last_at": None,
        "pushed": 0,
        "paused": False,
        "misfire": "one",
        "skipped": 0,
        "options": {},
        "from_configuration": False,
    }
    assert rows.from_wire(list[ScheduleRow], [schedule])[0].problem is None


def test_another_answer_is_refused_by_name() -> None:
    with pytest.raises(BadFramesError, match=r"Expected `float .*\$\.seen"):
        rows.from_wire(BrokerRow, {**BROKER, "seen": "long ago"})


def test_a_damaged_document_is_shown_without_what_is_wrong() -> None:
    damaged = {"id": "a", "state": 7, "attempts": "many", "priority": 3, "payload": b"\xff", "errors": "none"}
    row = rows.from_document(JobRow, damaged)
    assert row == JobRow(id="a", state="", priority=3, payload=b"\xff")


def test_the_wire_has_what_it_had_and_no_fields_that_do_not_apply() -> None:
    assert rows.plain(rows.from_wire(BrokerRow, BROKER)) == BROKER  # ended stays, as nil
    assert rows.plain(JobRow(id="a", state="ready", payload=b"\xff")) == {
        "id": "a", "state": "ready", "payload": b"\xff"
    }  # fmt: skip
    assert rows.plain(EventRow(at=1.0, event="redriven", queue="q", source="p"))["from"] == "p"
    redriven = {"moved": 1, "left": 0, "refused": (["a", "TOO_LARGE", "too large"],)}
    assert rows.plain(rows.from_wire(RedriveRow, redriven)) == redriven


@pytest.mark.parametrize("row", ALL, ids=[type_.__name__ for type_ in ALL])
def test_rows_are_frozen_have_words_and_a_schema(row: type[Row]) -> None:
    assert row.__struct_config__.frozen
    assert row.__doc__
    assert msgspec.json.schema(row)


def test_numbers_of_mongodb_are_numbers_on_the_wire() -> None:
    class Int64(int):
        """As bson's: what MongoDB has in 64 bits."""

    assert rows.plain(JobRow(id="a", state="waiting", wait={"seq": Int64(7)}))["wait"] == {"seq": 7}


def test_a_payload_is_enough() -> None:
    job = Job(payload=b"cat.jpg")
    assert (job.payload, job.headers, job.attempt, job.priority, job.max_attempts) == (
        b"cat.jpg",
        {},
        1,
        0,
        13,
    )
    assert isinstance(job.id, str)
    assert isinstance(job.queue, str)
    assert 0 <= job.age < 3600
    job.extend(60)
    assert repr(job) == "<Job id of queue, attempt 1, 7 bytes>"


def test_all_else_may_be_as_the_test_needs_it() -> None:
    job = Job(b"x", id="mine", queue="mail", headers={"a": 1}, attempt=3, priority=9, max_attempts=3,
              age=timedelta(days=2))  # fmt: skip
    assert (job.id, job.queue, job.headers, job.attempt, job.priority) == ("mine", "mail", {"a": 1}, 3, 9)
    assert (job.max_attempts, job.age >= 2 * 86400) == (3, True)


@pytest.mark.parametrize(
    ("kind", "python"), [(errors.TimeoutError, TimeoutError), (errors.BadHeadersError, ValueError)]
)
def test_what_python_has_an_error_for_is_it(kind: type[errors.SluiceError], python: type[Exception]) -> None:
    with pytest.raises(python, match="text"):
        raise kind("text")
    with pytest.raises(errors.SluiceError, match="text"):
        raise kind("text")


#: Commands that are no verbs of administration: they publish, read, or compute alone.
BESIDE = {"streams publish", "streams read", "streams tail", "principals hash"}

#: Paths for browsers: a payload as a file, one dead letter, the counters of the broker itself, and curves.
OF_HTTP = {"jobs.payload", "jobs.delete", "jobs.redrive", "brokers.counters"}
OF_HTTP |= {"jobs.push", "streams.messages"}
OF_HTTP |= {"history.get", "history.series", "history.recent"}


def commands() -> dict[str, click.Command]:
    """Each command of a noun, by its words."""
    context, found = click.Context(app), {}
    for name in app.list_commands(context):
        noun = app.get_command(context, name)
        if isinstance(noun, Noun):
            found.update({f"{name} {verb}": command for verb, command in noun.commands.items()})
    return found


def test_the_namespaces_of_a_client_have_the_verbs_of_the_table() -> None:
    namespaces = vars(Namespaces(Calls.__new__(Calls)))
    found = {
        f"{noun}.{verb}"
        for noun, namespace in namespaces.items()
        if isinstance(namespace, Namespace)
        for verb, _ in inspect.getmembers(type(namespace), inspect.isfunction)
        if not verb.startswith("_")
    }
    assert found == {verb.method for verb in VERBS}


def test_the_command_line_has_the_verbs_of_the_table() -> None:
    assert commands().keys() - BESIDE == {verb.command for verb in VERBS if verb.command}


def test_help_has_each_command_in_one_section() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == app.list_commands(click.Context(app))


def test_paths_of_http_have_the_verbs_of_the_table() -> None:
    nouns = {verb.noun for verb in VERBS}
    routes = [route for methods in site().table.values() for route, _ in methods.values()]
    named = {route.name for route in routes if route.name.partition(".")[0] in nouns}
    assert named - {verb.method for verb in VERBS} == OF_HTTP


@pytest.mark.parametrize("verb", [known for known in VERBS if known.smq], ids=lambda verb: verb.method)
def test_each_verb_of_smq1_exists(verb: Verb) -> None:
    assert getattr(wire, verb.smq.partition(" ")[0]) == verb.smq.partition(" ")[0].encode()


@pytest.mark.parametrize(("old", "new"), FORMER.items())
def test_a_command_of_the_last_version_is_hidden_and_has_a_new_form(old: str, new: str) -> None:
    first, *rest = old.split()
    command = app.get_command(click.Context(app), first)
    assert command is not None
    if rest:
        assert isinstance(command, click.Group)
        command = command.commands[rest[0]]
    assert command.hidden
    assert " ".join(new.split()[:2]) in commands()
