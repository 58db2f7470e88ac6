"""Every job option is declared once; what does not follow from the table is held against it here.

``reply`` is the exception wherever it stands apart: the doors act on it, the job only has what they set.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import click
import pytest

from sluicemq import Producer
from sluicemq.cli.app import app
from sluicemq.namespaces.jobs import Jobs
from sluicemq.protocol.options import KEYWORDS, OPTIONS, JobOptions, Option
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import ChildEnd, Job, Pack, Parent, Reservation
from sluicemq_broker.job.job import ATTRIBUTES
from sluicemq_broker.queue import JobMaker, check_headers
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueDefaults, date
from sluicemq_broker.store.jobs.documents import (
    HANDED_OUT,
    HANDED_OUT_FAIRLY,
    PACK_FIELDS,
    Unreadable,
    document,
)
from sluicemq_broker.store.jobs.documents import job as loaded
from support.fakes import Clock
from support.jobs import NOW

ALL = list(OPTIONS.values())
OF_JOBS = [option for option in ALL if option.name != "reply"]
OF_QUEUES = [option for option in ALL if option.setting]
#: So that a dedupe_window has something to be about.
BESIDE = {"dedupe_id": "d"}
USUAL = QueueDefaults()
#: What a job that is handed out is no longer asked for, and what a claim or its history has in its place.
NOT_READ = {"created_at", "dedupe", "eligible_at", "reservation", "place", "story", "pack"}
#: Attributes that are stored under another name.
ATTRIBUTE_OF = {"suspect": "isolated", "asked": "result_wanted", "pushed_by": "story"}


def made(headers: dict[str, Any], **queue: Any) -> Job:
    return JobMaker(Clock(), 1000).make(ANYBODY, QueueSettings(**queue), b"x", headers)


def named(options: list[Option]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("option", options, ids=[option.name for option in options])


def parts(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in ATTRIBUTES - {"id"}}


@named(ALL)
def test_an_option_has_a_sentence_and_an_example_that_its_rule_takes(option: Option) -> None:
    assert option.doc
    check_headers({option.name: option.example})
    assert option.example != option.default or option.name == "reply"


@named([option for option in ALL if option.default is not None])
def test_what_holds_without_an_option_is_a_value_that_it_may_have(option: Option) -> None:
    check_headers({option.name: option.default})


def test_the_keywords_of_a_push_are_the_options() -> None:
    apart = inspect.signature(Producer.push).parameters.keys() - {"self", "queue", "payload", "options"}
    assert apart == {"id"}
    assert set(JobOptions.__annotations__) == OPTIONS.keys() - {"id"} == KEYWORDS


@named(ALL)
def test_push_says_of_every_option_that_there_is_such_a_keyword(option: Option) -> None:
    assert f"``{option.name}``" in (Producer.push.__doc__ or "")


def test_what_can_be_changed_while_a_job_waits_is_what_the_client_takes() -> None:
    keywords = inspect.signature(Jobs.change).parameters.keys() - {"self", "queue", "id"}
    assert keywords == {option.name for option in ALL if option.changeable}


def flags(command: str) -> dict[str, Any]:
    found = app.get_command(click.Context(app), command)
    assert found
    return {str(param.name): param for param in found.params}


@named([option for option in ALL if option.name not in ("reply", "headers")])
def test_push_has_a_flag_for_every_option_that_reads_it_and_says_what_it_is(option: Option) -> None:
    flag = flags("push")[option.name]
    text = option.example["kind"] if isinstance(option.example, dict) else str(option.example)
    assert flag.opts == ["--" + option.name.replace("_", "-")]
    assert flag.help.lower() == f"{option.doc}.".lower()
    assert flag.metavar == option.metavar
    assert option.rule.holds(flag.type.convert(text, flag, None))


def test_change_has_a_flag_for_what_can_be_changed() -> None:
    assert OPTIONS.keys() & flags("change").keys() - {"id"} == {
        option.name for option in ALL if option.changeable
    }


def test_a_setting_with_the_name_of_an_option_is_the_one_that_gives_it() -> None:
    keys = {field.name for field in fields(QueueSettings)}
    bounds = {option.bound for option in ALL if option.bound}
    assert {queue.setting for queue in OF_QUEUES} | bounds == keys & OPTIONS.keys()


@named(OF_QUEUES)
def test_a_queue_has_the_options_default_and_may_say_what_a_header_may(option: Option) -> None:
    setting = next(field for field in fields(QueueSettings) if field.name == option.setting)
    assert setting.default == option.default
    for value in (option.default, *option.rule.bounds):
        assert value is None or setting.metadata["rule"](value) == value


@named([queue for queue in OF_QUEUES if queue.name != "backoff"])
def test_a_queues_setting_does_to_a_job_what_its_header_does(option: Option) -> None:
    defaults = parts(made(BESIDE))
    by_header = parts(made({**BESIDE, option.name: option.example}))
    assert parts(made(BESIDE, **{option.setting: option.example})) == by_header != defaults


@named([queue for queue in OF_QUEUES if queue.name not in ("backoff", "dedupe_window")])
def test_a_queues_setting_holds_for_a_job_without_any_header(option: Option) -> None:
    own = {option.setting: option.example}
    assert parts(made({}, **own)) == parts(made({option.name: option.example}, **own)) != parts(made({}))


@named(OF_JOBS)
def test_an_option_changes_the_fields_that_it_says_it_does(option: Option) -> None:
    beside = BESIDE if option.name == "dedupe_window" else {}
    without, with_it = (
        stored(made({**beside, **own})) for own in ({"priority": 0}, {option.name: option.example})
    )
    changed = {key for key in without.keys() | with_it if without.get(key) != with_it.get(key)}
    # The broker gives an id to a job without one.
    assert changed - {"_id"} == set(option.stored) - {"_id"}
    assert option.name != "id" or with_it["_id"] == option.example


@named(OF_JOBS)
def test_what_is_stored_of_an_option_and_read_is_the_job_that_was_pushed(option: Option) -> None:
    pushed = made({**BESIDE, option.name: option.example})
    read = handed_out(stored(pushed))
    kept = ATTRIBUTES - NOT_READ - {"tenant"}
    assert {name: getattr(read, name) for name in kept} == {name: getattr(pushed, name) for name in kept}


def test_of_a_job_that_has_everything_all_is_read_that_a_broker_asks_for_later() -> None:
    # Given a job of whose attributes none is as by default
    job, nobody = with_everything(), Job("", b"")
    assert {name for name in ATTRIBUTES if getattr(job, name) == getattr(nobody, name)} == set()
    # When it is stored, with what a sweep notes in its document, and read
    document = stored(job) | {"losses": job.losses, "unanswered": job.unanswered, "suspect": job.isolated}
    read = loaded(
        {key: document[key] for key in ("_id", *HANDED_OUT_FAIRLY) if key not in PACK_FIELDS}, USUAL
    )
    kept = ATTRIBUTES - NOT_READ
    assert {name: getattr(read, name) for name in kept} == {name: getattr(job, name) for name in kept}


def test_what_is_read_of_a_job_is_what_a_job_has() -> None:
    assert {ATTRIBUTE_OF.get(field, field) for field in HANDED_OUT.keys() - PACK_FIELDS} <= {*dir(Job)}


def test_whose_a_job_is_is_stored_and_read_and_nothing_else_changes() -> None:
    pushed, nobodys = made({}), made({})
    pushed.belong_to("eve", None)
    own, plain = stored(pushed), stored(nobodys)
    assert own == {**plain, "_id": pushed.id, "pushed_by": "eve"}
    assert handed_out(own).story == pushed.story == {"pushed_by": "eve"}
    assert handed_out({**own, "pushed_by": 7}).story is None  # somebody wrote it by hand


@pytest.mark.parametrize("value", ["x", True, 1.5, None, [1]])
@pytest.mark.parametrize("key", ["priority", "seq", "attempts"])
def test_a_stored_job_of_which_a_number_is_none_is_unreadable(key: str, value: Any) -> None:
    with pytest.raises(Unreadable, match=f"its {key} .* is no whole number"):
        handed_out({**stored(made({})), key: value})


def test_a_result_that_is_wanted_is_stored_and_read() -> None:
    pushed = made({})
    pushed.remember, pushed.result_wanted = 60.0, True
    assert stored(pushed).keys() - stored(made({})).keys() == set(OPTIONS["reply"].stored)
    read = handed_out(stored(pushed))
    assert (read.remember, read.result_wanted) == (60.0, True)


def test_of_what_a_jobs_queue_says_anyway_nothing_is_stored() -> None:
    unless_default = {option.name: option for option in ALL if option.unless_default}
    numbers = unless_default.keys() & set(QueueDefaults._fields)
    assert unless_default.keys() - numbers == {"backoff"}  # which JobMaker leaves out
    for name in numbers:
        own = {name: unless_default[name].example}
        assert name in stored(made(own))
        assert name not in stored(made(own), USUAL._replace(**own))
        assert getattr(handed_out(stored(made({})), USUAL._replace(**own)), name) == own[name]
    kind = unless_default["backoff"].default
    assert "backoff" not in stored(made({"backoff": kind}))


@pytest.mark.parametrize("name", sorted(QueueDefaults._fields))
def test_what_a_queue_says_of_its_jobs_in_the_store_is_a_setting_with_the_same_default(name: str) -> None:
    assert getattr(USUAL, name) == getattr(QueueSettings(), name)


def test_a_job_that_says_nothing_is_treated_by_default_as_in_a_queue_that_says_nothing() -> None:
    assert parts(Job("a", b"x")) == parts(made({}))


def with_everything() -> Job:
    job, former = made({option.name: option.example for option in OF_JOBS}), Job("former", b"x")
    former.keep_result(60.0)
    job.belong_to("eve", None)
    job.accept(7, NOW)
    job.continue_from(former, {*OPTIONS, "payload"}, None, {"passed": [{"queue": "first"}]})
    job.reserve(Reservation("me", 3))
    parent = Parent("mail", "parent", 5, "them/1")
    job.restore_rare(
        unanswered=2, losses=2, isolated=True, result_wanted=True, dedupe_until=NOW + 5, parent=parent
    )
    job.join([ChildEnd("1.2", error="no ink"), ChildEnd("1.1", b"page")])
    job.line_up(1)
    job.pack_into(Pack("pack/a/1", 7, 40))
    return job


def stored(job: Job, defaults: QueueDefaults = USUAL) -> dict[str, Any]:
    job.dedupe_until = NOW + job.dedupe.window if job.dedupe else 0.0
    job.line_up(1)
    return document(job, date(NOW), defaults)


def handed_out(stored: dict[str, Any], defaults: QueueDefaults = USUAL) -> Job:
    return loaded({key: stored[key] for key in ("_id", *HANDED_OUT) if key in stored}, defaults)
