"""Old names work, and warn at the line of the program that uses them, with what to write instead."""

import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import sluicemq
from sluicemq import (
    Access,
    Claim,
    ClaimedJob,
    Client,
    Producer,
    Publisher,
    Reader,
    SluiceError,
    Subscription,
    Worker,
)
from sluicemq._deprecated import OLD_NAMES, Keyword, Moved, module_names, renamed_keywords


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = OLD_NAMES.copy()
    yield
    OLD_NAMES.clear()
    OLD_NAMES.update(before)


class Kitchen:
    def __init__(self) -> None:
        self.ovens = ["small"]

    def bake(self, what: str) -> str:
        return f"{what}, baked"

    cook = Moved("bake")
    stoves = Moved("ovens", "Kitchen.ovens, a list", adapt=tuple)


@renamed_keywords("serve", hot=Keyword("degrees", "serve(degrees=60)", lambda hot: 60 if hot else 20))
def serve(dish: str, *, degrees: int = 20) -> str:
    return f"{dish} at {degrees}"


def test_an_old_method_does_what_the_new_one_does() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Kitchen.cook is now Kitchen.bake$") as seen:
        assert Kitchen().cook("bread") == "bread, baked"
    assert seen[0].filename == __file__


def test_an_old_attribute_is_what_it_was() -> None:
    with pytest.warns(DeprecationWarning, match=r"Kitchen.stoves is now Kitchen.ovens, a list"):
        assert Kitchen().stoves == ("small",)


def test_an_old_keyword_is_converted() -> None:
    old: dict[str, Any] = {"hot": True}
    with pytest.warns(DeprecationWarning, match=r"serve\(hot=\) is now serve\(degrees=60\)") as seen:
        assert serve("soup", **old) == "soup at 60"
    assert seen[0].filename == __file__


def test_an_old_keyword_beside_the_new_one_is_an_error() -> None:
    old: dict[str, Any] = {"hot": True}
    with pytest.warns(match="is now"), pytest.raises(TypeError, match="'hot', which is its old name"):
        serve("soup", degrees=3, **old)


def test_an_old_name_of_a_module_is_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kitchen: Any = ModuleType("kitchen")
    kitchen.Oven = Kitchen
    kitchen.__getattr__ = module_names("kitchen", {"Stove": "Oven"})
    monkeypatch.setitem(sys.modules, "kitchen", kitchen)
    with pytest.warns(DeprecationWarning, match=r"^Stove is now Oven$"):
        assert kitchen.Stove is Kitchen
    with pytest.raises(AttributeError, match="module 'kitchen' has no attribute 'Spoon'"):
        _ = kitchen.Spoon


ENDPOINT = "tcp://127.0.0.1:1"

OLD_CONSTRUCTORS: list[tuple[type, tuple[Any, ...], dict[str, Any], str]] = [
    (Producer, (ENDPOINT,), {}, "Producer(endpoint) is now Producer(endpoint=endpoint)"),
    (Publisher, ([ENDPOINT],), {}, "Publisher(endpoint) is now Publisher(endpoint=endpoint)"),
    (Client, (None,), {"timeout": 1}, "Client(endpoint) is now Client(endpoint=endpoint)"),
    (Client, (), {"patient": False, "endpoint": ENDPOINT}, "Client(patient=) is now Client(wait=)"),
    (
        Worker,
        (ENDPOINT, "mail", print),
        {},
        "Worker(endpoint, queue, handler) is now Worker(queue, handler, endpoint=endpoint)",
    ),
    (
        Worker,
        (Access((ENDPOINT,)), "mail"),
        {"handler": print},
        "Worker(endpoint, queue, handler) is now Worker(queue, handler, endpoint=endpoint)",
    ),
    (Worker, ("mail", print), {"wait_for_queue": False}, "Worker(wait_for_queue=) is now Worker(wait=)"),
    (
        Reader,
        (ENDPOINT, "prices", 7),
        {},
        "Reader(endpoint, stream, after) is now Reader(stream, endpoint=endpoint)",
    ),
    (Reader, ("prices",), {"after": 7}, "Reader(after=) is now Reader(start=Start.at(after + 1))"),
    (Reader, ("prices",), {"since": 7.0}, "Reader(since=) is now Reader(start=Start.since(since))"),
    (Reader, ("prices",), {"new": True, "after": 0}, "Reader(new=) is now Reader(start=Start.new())"),
    (
        Subscription,
        (ENDPOINT, "prices", "billing", print),
        {},
        (
            "Subscription(endpoint, stream, name, handler) is now "
            "Subscription(stream, name, handler, endpoint=endpoint)"
        ),
    ),
    (
        Subscription,
        ("prices", "billing", print),
        {"after": 0},
        "Subscription(after=) is now Subscription(restart=Start.at(after + 1))",
    ),
    (
        Subscription,
        ("prices", "billing", print),
        {"start": -1},
        "Subscription(start=) is now Subscription(start=Start.at(start + 1))",
    ),
    (
        Subscription,
        ("prices", "billing", print),
        {"begin": print},
        "Subscription(begin=) is now Subscription(on_restart=)",
    ),
    (
        Subscription,
        ("prices", "billing", print),
        {"watermark": lambda: 0},
        "Subscription(watermark=) is now Subscription(position=)",
    ),
]


@pytest.mark.parametrize(("kind", "args", "keywords", "text"), OLD_CONSTRUCTORS)
def test_a_constructor_of_0_3_works_and_says_what_to_write(
    kind: type, args: tuple[Any, ...], keywords: dict[str, Any], text: str
) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(text)}$") as seen:
        made = kind(*args, **keywords)
    assert seen[0].filename == __file__
    if not isinstance(made, Worker | Subscription):  # which were not started
        made.close(0) if isinstance(made, Producer | Publisher) else made.close()


def test_every_old_constructor_stands_in_the_table_above() -> None:
    told = {text.partition(" is now ")[0] for *_, text in OLD_CONSTRUCTORS}
    classes = ("Producer(", "Publisher(", "Client(", "Worker(", "Reader(", "Subscription(")
    assert told == {old for old in OLD_NAMES if old.startswith(classes)}


@pytest.mark.parametrize("kind", [Producer, Publisher, Client, Worker, Reader, Subscription])
def test_the_endpoint_is_the_last_keyword_of_every_class(kind: type) -> None:
    named = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert named[-1] == "endpoint"
    assert inspect.signature(kind).parameters["endpoint"].default is None


def test_an_endpoint_that_is_given_twice_is_an_error() -> None:
    twice: Any = Producer
    with pytest.warns(match="is now"), pytest.raises(TypeError, match="Producer got 'endpoint' twice"):
        twice(ENDPOINT, endpoint=ENDPOINT)


OLD_ERRORS = {old: new for old, new in sluicemq._RENAMED.items() if new.endswith("Error")}


@pytest.mark.parametrize(("old", "new"), sluicemq._RENAMED.items())
def test_a_name_of_0_3_is_the_new_one_and_says_so(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {new}$") as seen:
        assert getattr(sluicemq, old) == getattr(sluicemq, new)
    assert seen[0].filename == __file__


def test_every_error_ends_in_error_and_has_kept_its_code() -> None:
    errors = [
        var for var in vars(sluicemq).values() if isinstance(var, type) and issubclass(var, SluiceError)
    ]
    assert len(errors) == len(OLD_ERRORS) + len({"OldBrokerError", "CancelledError"})
    assert all(error.__name__.endswith("Error") for error in errors)
    assert sluicemq.NotFoundError.code == "NOT_FOUND"
    assert issubclass(sluicemq.TimeoutError, TimeoutError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sluicemq' has no attribute 'Prodcuer'"):
        _ = sluicemq.Prodcuer  # type: ignore[attr-defined]


def test_completion_shows_what_is_exported() -> None:
    assert dir(sluicemq) == sorted(sluicemq.__all__)
    assert {name for name in sluicemq.__all__ if name.startswith("_")} == set()


@pytest.mark.parametrize(
    ("owner", "old", "new"), [(ClaimedJob, "rollback", "retry"), (Claim, "release", "requeue")]
)
def test_an_old_method_of_a_claim_is_the_new_one(owner: Any, old: str, new: str) -> None:
    assert OLD_NAMES[f"{owner.__name__}.{old}"] == f"{owner.__name__}.{new}"
    made = owner.__new__(owner)
    with pytest.warns(DeprecationWarning, match=f"{old} is now .*{new}"):
        assert getattr(made, old) == getattr(made, new)
