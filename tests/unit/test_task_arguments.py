"""Tasks: arguments are checked at the push and converted at the worker; flows; middleware; old jobs."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from sluicemq import (
    PREVIOUS,
    App,
    ChildResult,
    FanOut,
    Forward,
    Job,
    Middleware,
    Reject,
    Retry,
    TaskRun,
    chain,
    group,
)
from sluicemq.app.step import headers_of


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    item: str
    due: datetime
    lines: list[int] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Model(pydantic.BaseModel):
    name: str
    at: datetime


MOMENT = datetime(2030, 1, 31, 12, tzinfo=UTC)


def job_of(step: Any, **changes: Any) -> Job:
    """Return the job that a worker gets of a step."""
    return Job(bytes(step.plan.arguments), headers=headers_of(step.plan), **changes)


def ran_with(kind: Any, value: Any) -> Any:
    """Return what a function gets for an argument of a type."""
    app, got = App(middleware=[]), []

    def take(value: Any) -> None:
        got.append(value)

    take.__annotations__["value"] = kind
    app.handler(job_of(app.task(take).s(value)))
    return got[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 7), (float, 1.5), (str, "Zoë"), (bool, True), (bytes, b"\x00\xff"), (None | int, None),
        (datetime, MOMENT), (date, date(2030, 1, 31)), (timedelta, timedelta(seconds=90)),
        (UUID, UUID(int=7)), (Decimal, Decimal("1.10")), (Colour, Colour.RED), (Literal["a", "b"], "a"),
        (list[Colour], [Colour.RED]), (dict[int, str], {1: "a"}), (tuple[int, str], (1, "a")),
        (set[int], {1, 2}), (Order, Order("cup", MOMENT, [1])), (Point, Point(1, 2.0)),
        (Model, Model(name="a", at=MOMENT)), (list[Model], [Model(name="a", at=MOMENT)]),
        (Any, {"a": [1, None]}),
    ],
)  # fmt: skip
def test_an_argument_comes_to_the_function_as_it_was_pushed(kind: Any, value: Any) -> None:
    assert ran_with(kind, value) == value


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (int, "7", "argument 'value': Expected `int`, got `str`"),
        (int, None, "argument 'value': Expected `int`, got `null`"),
        (float, float("nan"), "argument 'value': Expected `float`, got `null`"),
        (Colour, "blue", "argument 'value': Invalid enum value 'blue'"),
        (Order, {"item": "cup"}, "argument 'value': Object missing required field `due`"),
        (Model, {"name": "a"}, "argument 'value': 1 validation error for Model"),
        (Any, object(), "a value has no form in JSON: a object has no form"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_at_the_push(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(TypeError) as refused:
        ran_with(kind, value)
    assert str(refused.value).startswith(f"take: {why}")


def send(to: str, /, subject: str = "hi", *copies: str, urgent: bool = False, **tags: int) -> str:
    return f"{to} {subject} {copies} {urgent} {tags}"


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (lambda task: task.s("a"), {"to": "a"}),
        (lambda task: task.s("a", "b"), {"to": "a", "subject": "b"}),
        (lambda task: task.s("a", subject="b"), {"to": "a", "subject": "b"}),
        (lambda task: task.s("a", "b", "c", "d"), {"to": "a", "subject": "b", "copies": ["c", "d"]}),
        (lambda task: task.s("a", urgent=True, x=1), {"to": "a", "urgent": True, "x": 1}),
    ],
)
def test_a_call_travels_as_named_arguments(call: Callable[[Any], Any], sent: dict[str, Any]) -> None:
    app = App(middleware=[])
    step = call(app.task(send))
    assert json.loads(bytes(step.plan.arguments)) == sent
    positional = [
        sent.pop("to"),
        *([sent.pop("subject")] if "subject" in sent else []),
        *sent.pop("copies", []),
    ]
    result = app.handler(job_of(step))
    assert isinstance(result, bytes)
    assert json.loads(result) == send(*positional, **sent)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda task: task.s(), "send: missing a required argument: 'to'"),
        (lambda task: task.s("a", x="b"), "send: argument 'x': Expected `int`, got `str`"),
        (lambda task: task.s("a", "b", 3), "send: argument 'copies': Expected `str`, got `int`"),
        (lambda task: task.s("a", to=3), "send: got two values for 'to'"),
        (lambda task: task.s(PREVIOUS, subject=PREVIOUS), "send: only one argument is PREVIOUS"),
        (lambda task: task.s(PREVIOUS).push(), "send has no step before it"),
    ],
)
def test_a_call_the_function_does_not_take_is_not_pushed(call: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(TypeError) as refused:
        call(App().task(send))
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("payload", "kind", "why"),
    [
        (b"", "send", "the payload is not JSON"),
        (b"\xff", "send", "the payload is not JSON"),
        (b"[1]", "send", "no JSON object"),
        (b"{}", "send", "argument 'to' is missing"),
        (b'{"to": 3}', "send", "argument 'to': Expected `str`, got `int`"),
        (b'{"to": "a", "x": "b"}', "send", "argument 'x': Expected `int`"),
        (b'{"to": "a"}', "sent", "its kind is 'sent', and no task here has that"),
        (b'{"to": "a"}', None, "its kind is None"),
        (b'{"to": "a"}', ["send"], "its kind is ['send']"),
        (b"{}", "sluicemq.group", "the payload has no steps"),
        (b'{"steps": []}', "sluicemq.group", "a job has 1 to 1000 children"),
    ],
)
def test_a_job_that_can_not_be_called_is_dead_with_a_reason(payload: bytes, kind: Any, why: str) -> None:
    app = App(middleware=[])
    app.task(send)
    with pytest.raises(Reject, match="the job can't be called") as rejected:
        app.handler(Job(payload, headers={"kind": kind}))
    assert why in str(rejected.value)


def test_a_job_of_an_older_function_gets_the_defaults_of_the_new_one() -> None:
    # Given: a job of ``def greet(name)``
    old = Job(b'{"name": "Ann"}', headers={"kind": "greet"})
    app = App(middleware=[])

    @app.task
    def greet(greeting: str = "Hello", *, name: str, mark: str = "!") -> str:
        return f"{greeting} {name}{mark}"

    assert app.handler(old) == b'"Hello Ann!"'
    with pytest.raises(Reject, match="there is no argument 'nick'"):
        app.handler(Job(b'{"name": "Ann", "nick": "A"}', headers={"kind": "greet"}))


def test_the_job_is_the_first_argument_of_a_bound_task() -> None:
    app = App(middleware=[])

    @app.task(bind=True)
    def number(job: Job, plus: int) -> int:
        return job.attempt + plus

    assert app.handler(job_of(number.s(5), attempt=2)) == b"7"


def test_a_coroutine_is_awaited() -> None:
    app = App(middleware=[])

    @app.task
    async def double(value: int) -> int:
        return 2 * value

    assert app.handler(job_of(double.s(5))) == b"10"


def test_a_task_is_the_function_too() -> None:
    assert App().task(send)("a") == send("a")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retries": -1}, "retries is a whole number from 0"),
        ({"timeout": "0s"}, "timeout is more than 0 seconds"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"priority": 300}, "priority"),
        ({"colour": 3}, "unexpected keyword argument 'colour'"),
        ({"kind": ""}, "a kind has 1 to 64 visible characters"),
    ],
)
def test_wrong_options_are_refused_where_the_task_stands(options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        App().task(**options)(send)  # type: ignore[no-untyped-call]
    assert why in str(refused.value)


def test_options_of_one_push_come_before_those_of_the_task() -> None:
    task = App().task(queue="mail", retries=5, timeout="30s", priority=3)(send)
    plan = task.options(queue="bulk", retries=0, group="g").s("a").plan
    assert (plan.queue, plan.headers["timeout"]) == ("bulk", 30.0)
    assert plan.options == {"max_attempts": 1, "visibility_timeout": 45.0, "priority": 3, "group": "g"}


def test_a_worker_finds_types_that_json_can_not_tell_apart() -> None:
    app = App()

    @app.task
    def pay(what: Order | Point) -> None:
        pass

    with pytest.raises(TypeError, match="task pay: argument 'what': Type unions may not contain"):
        app.worker()


def test_two_tasks_of_one_kind_are_refused() -> None:
    app = App()
    app.task(send)
    with pytest.raises(ValueError, match="two tasks 'send'"):
        app.task(send)


# ------------------------------------------------------------------------ flows


def an_app() -> tuple[App, Any, Any]:
    app = App(middleware=[])

    @app.task(queue="first")
    def length(text: str) -> int:
        return len(text)

    @app.task(queue="second", retries=2)
    def times(number: int, by: int = 1) -> int:
        return number * by

    return app, length, times


def test_a_chain_hands_the_result_on_to_the_argument_that_asks_for_it() -> None:
    app, length, times = an_app()
    step = chain(length.s("abc"), times.s(PREVIOUS, by=2), times.s(PREVIOUS, by=5))
    second = app.handler(job_of(step))
    assert isinstance(second, Forward)
    headers = (second.onward[2] or {})["headers"]
    third = app.handler(Job(second.payload or b"", headers=headers))
    assert isinstance(third, Forward)
    headers = (third.onward[2] or {})["headers"]
    assert (second.queue, json.loads(second.payload or b"")) == ("second", {"by": 2, "number": 3})
    assert second.onward[2]["max_attempts"] == 3
    assert "then" not in headers
    assert app.handler(Job(third.payload or b"", headers=headers)) == b"30"


def test_a_group_has_each_step_as_a_child() -> None:
    app, length, times = an_app()
    step = group(times.s(2), chain(length.s("a"), times.s(PREVIOUS)))
    children = app.handler(job_of(step))
    assert step.plan.queue == "second"
    assert isinstance(children, FanOut)
    assert [(queue, json.loads(payload)) for queue, payload, _ in children.onward] == [
        ("second", {"number": 2}),
        ("first", {"text": "a"}),
    ]


def joined(step: Any, *children: ChildResult) -> Job:
    """The second delivery of a group's job."""
    first = job_of(step)
    return Job(first.payload, headers=first.headers, children=children)


def test_a_group_hands_the_results_of_its_steps_on_in_a_list() -> None:
    app, _, times = an_app()

    @app.task(queue="third")
    def total(numbers: list[Any]) -> int:
        return sum(number for number in numbers if isinstance(number, int))

    step = group(times.s(2), times.s(3), allow_failures=True).then(total.s(PREVIOUS), times.s(PREVIOUS))
    children = app.handler(job_of(step))
    ends = (ChildResult("a.1", b"2"), ChildResult("a.2", None, "no ink"), ChildResult("a.3", b""))
    onward = app.handler(joined(step, *ends))
    assert isinstance(children, FanOut)
    assert children.options == {"join": True, "allow_failures": True}
    assert isinstance(onward, Forward)
    assert onward.queue == "third"
    assert json.loads(onward.payload or b"") == {"numbers": [2, {"id": "a.2", "error": "no ink"}, None]}
    headers = (onward.onward[2] or {})["headers"]
    last = app.handler(Job(onward.payload or b"", headers=headers))
    assert isinstance(last, Forward)
    assert json.loads(last.payload or b"") == {"number": 2}


@pytest.mark.parametrize(
    ("child", "why"),
    [
        (ChildResult("a.1", None, "TOO_LARGE: it has 9 bytes"), "child a.1 has no result: TOO_LARGE"),
        (ChildResult("a.1", b"\xff"), "the result of child a.1 is not JSON"),
    ],
)
def test_a_group_with_an_unusable_result_is_a_dead_letter(child: ChildResult, why: str) -> None:
    app, _, times = an_app()
    with pytest.raises(Reject, match=why):
        app.handler(joined(group(times.s(2)).then(times.s(3)), child))


def test_flows_that_can_not_go_are_refused() -> None:
    _, length, times = an_app()
    with pytest.raises(ValueError, match="at least one step"):
        chain()
    with pytest.raises(TypeError, match="times in a group has no step before it: give 'number'"):
        group(times.s(PREVIOUS))
    with pytest.raises(TypeError, match="takes no 'dedupe_id'"):
        chain(length.s("a"), times.options(dedupe_id="d").s(1))
    with pytest.raises(TypeError, match="has the id of its flow"):
        group(times.options(id="x").s(1))


# ------------------------------------------------------------------------ middleware


class Noted(Middleware):
    def __init__(self, name: str, notes: list[str], *, fails: str = "") -> None:
        self.name, self.notes, self.fails = name, notes, fails

    def before(self, run: TaskRun) -> None:
        self.note("before", run)

    def after(self, run: TaskRun, result: Any) -> None:
        self.note(f"after {result}", run)

    def on_error(self, run: TaskRun, error: BaseException) -> None:
        self.note(f"on_error {error}", run)

    def note(self, what: str, run: TaskRun) -> None:
        self.notes.append(f"{self.name} {what}")
        if self.fails and what.startswith(self.fails):
            raise ValueError(self.fails)


@pytest.mark.parametrize(
    ("fails", "by", "seen"),
    [
        ("", 2, ["a before", "b before", "b after 6", "a after 6"]),
        ("", -1, ["a before", "b before", "b on_error no", "a on_error no"]),
        ("before", 2, ["a before", "b before", "b on_error before", "a on_error before"]),
        ("after", 2, ["a before", "b before", "b after 6", "a after 6"]),
        ("on_error", -1, ["a before", "b before", "b on_error no", "a on_error no"]),
    ],
)
def test_middleware_is_called_around_a_run_whose_end_stays(fails: str, by: int, seen: list[str]) -> None:
    notes: list[str] = []
    app = App(middleware=[Noted("a", notes), Noted("b", notes, fails=fails)])

    @app.task
    def times(by: int) -> int:
        if by < 0:
            raise Retry("no")
        return 3 * by

    expected = ValueError if fails == "before" else Retry if by < 0 else None
    if expected is None:
        assert app.handler(job_of(times.s(by))) == b"6"
    else:
        with pytest.raises(expected):
            app.handler(job_of(times.s(by)))
    assert notes == seen
