"""Values that no message can hold: refused in the caller's thread, by the argument's name; others go on."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_type_hints
from uuid import UUID

import msgpack
import pytest

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    BadStreamError,
    BadTopicError,
    Client,
    FanOut,
    Forward,
    Job,
    Producer,
    Publisher,
    PushReceipt,
    Reader,
    Reject,
    Retry,
    SluiceError,
    Subscription,
    TooLargeError,
    Worker,
    arguments,
)
from sluicemq.namespaces import Namespaces
from sluicemq.namespaces.calls import Calls
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, check_span
from sluicemq.protocol.readable import MOST_REASON
from sluicemq.transport.connection import Connection
from sluicemq.transport.questions import Questions

SURROGATE = "a\udcff"
Minutes = Duration
UUID_ = UUID(int=7)
DAY = date(2030, 1, 31)
NAN, INF = float("nan"), float("inf")

#: What no argument may be that has this check.
HOSTILE: dict[Any, list[Any]] = {
    arguments.text: [SURROGATE, "\ud800", 7, UUID_, DAY, b"bytes"],
    arguments.whole: [2**64, -(2**70), "7", 1.5, UUID_, True],
    arguments.number: [NAN, INF, -INF, 10**400, "1", Decimal(1), UUID_, DAY],
    check_span: [NAN, INF, 1e12, 10**400, "1", "soon", Decimal(1), UUID_, DAY],
    arguments.binary: ["text", 7, UUID_],
    arguments.texts: ["text", 7],
}
#: What an argument is, to be right; others are functions.
GOOD: dict[Any, Any] = {
    arguments.text: "name",
    arguments.whole: 1,
    arguments.number: 1.0,
    check_span: 1.0,
    arguments.binary: b"",
}
#: The namespaces of a client, whose methods are its verbs.
NAMESPACES: dict[str, type] = {
    name: type(value)
    for name, value in vars(Namespaces(Calls.__new__(Calls))).items()
    if isinstance(value, Namespace)
}
#: They check by themselves, which other tests show: too often called to be checked by their annotations.
APART = {Producer: {"push", "push_many", "submit", "call"}, Publisher: {"publish"}, Reader: {"read"}}


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """What is logged here can't be handed from one process of pytest to another, for it is no UTF-8."""
    logger = logging.getLogger("sluicemq")
    logger.disabled = True
    yield
    logger.disabled = False


def checks_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The check of each parameter; None: it has none. Names of types are found where the function stands."""
    types = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    found = {
        parameter.name: arguments.check_of(types.get(parameter.name))
        for parameter in parameters
        if parameter.kind != parameter.VAR_KEYWORD
    }
    return {name: None if check is None else check[0] for name, check in found.items()}


def hostile_arguments() -> list[tuple[type, str, str, Any]]:
    """Class, method, argument, value: each argument of each public method, with each value it must refuse."""
    found: list[tuple[type, str, str, Any]] = []
    for owner in (Client, *NAMESPACES.values(), Producer, Publisher, Reader, Subscription, Worker):
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if (method != "__init__" and method.startswith("_")) or method in APART.get(owner, ()):
                continue
            for name, check in checks_of(function).items():
                found.extend((owner, method, name, value) for value in HOSTILE.get(check, ()))
    return found


def with_one_bad(function: Callable[..., Any], name: str, value: Any) -> dict[str, Any]:
    """All that a function needs, and one argument that it must refuse."""
    called = vars(function)["__init__"] if isinstance(function, type) else function
    checks = checks_of(called)
    needed = {
        name: GOOD.get(checks[name], lambda _given: None)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    return {**needed, name: value}


def test_a_plain_type_without_a_check_is_an_error_when_the_class_is_made() -> None:
    class Oven:
        def bake(self, degrees: int | str) -> None: ...

    with pytest.raises(TypeError, match="declare it, as Annotated"):
        arguments.checked()(Oven)


def test_a_check_stays_when_its_type_has_another_name() -> None:
    @arguments.checked()
    class Oven:
        def bake(self, duration: Minutes) -> None: ...

    with pytest.raises(ValueError, match="duration is 'soon'"):
        Oven().bake("soon")


def test_every_argument_of_every_method_is_checked_in_the_callers_thread(broker: ScriptedBroker) -> None:
    cases = hostile_arguments()
    assert len(cases) > 400
    unchecked = []
    with Client(endpoint=broker.endpoint) as client, Producer(endpoint=broker.endpoint) as producer:
        objects: dict[type, Any] = {
            Client: client,
            **{owner: getattr(client, name) for name, owner in NAMESPACES.items()},
            Producer: producer,
            Publisher: Publisher.__new__(Publisher),
            Reader: Reader.__new__(Reader),
            Subscription: Subscription.__new__(Subscription),
            Worker: Worker("q", lambda _job: None, endpoint="tcp://127.0.0.1:1"),
        }
        for owner, method, name, value in cases:
            function = owner if method == "__init__" else getattr(objects[owner], method)
            try:
                function(**with_one_bad(function, name, value))
            except (TypeError, ValueError) as error:
                if name in str(error):
                    continue
            except SluiceError:
                pass
            unchecked.append((owner.__name__, method, name, value))
        assert unchecked == []
        # Then: nothing of it went out, and the connections that were there are there still
        client.ping(SECONDS)
        producer.push("q", b"").wait(SECONDS)
    assert {message.verb for message in broker.received} <= {wire.HELLO, wire.PING, wire.PUSH, wire.BYE}
    assert len(broker.of(wire.HELLO)) == 2


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (BadQueueError, {"queue": SURROGATE}),
        (ValueError, {"id": SURROGATE}),
        (TypeError, {"id": UUID_}),
        (TypeError, {"payload": UUID_}),
        (BadHeadersError, {"priority": 2**70}),
        (BadHeadersError, {"group": SURROGATE}),
        (BadHeadersError, {"dedupe_id": SURROGATE}),
        (BadHeadersError, {"not_before": DAY}),
        (BadHeadersError, {"delay": NAN}),
        (BadHeadersError, {"backoff": {"kind": SURROGATE}}),
        (BadHeadersError, {"headers": {"x": UUID_}}),
        (BadHeadersError, {"headers": {"x": DAY}}),
        (BadHeadersError, {"headers": {"x": datetime(2030, 1, 1, tzinfo=UTC)}}),
        (BadHeadersError, {"headers": {"x": SURROGATE}}),
        (BadHeadersError, {"headers": {SURROGATE: 1}}),
        (BadHeadersError, {"headers": {"x": 2**64}}),
        (BadHeadersError, {"headers": {"x": msgpack.ExtType(5, b"")}}),
        (TooLargeError, {"headers": {"x": "x" * (1 << 17)}}),
    ],
)
@pytest.mark.parametrize("way", ["push", "submit", "call", "push_many"])
def test_a_push_of_what_can_not_be_sent_is_refused_and_the_others_go_on(
    broker: ScriptedBroker, way: str, error: type[Exception], arguments: dict[str, Any]
) -> None:
    given: Any = {"queue": "q", "payload": b"x", **arguments}

    def push() -> None:
        if way == "push_many":
            (receipt,) = producer.push_many(given.pop("queue"), [given])
            receipt.wait(SECONDS)
        else:
            getattr(producer, way)(**given)

    with Producer(endpoint=broker.endpoint) as producer:
        before = producer.push("q", b"before")
        with pytest.raises((error, BadFramesError)):
            push()
        after = producer.push("q", b"after")
        for receipt in (before, after):
            receipt.wait(SECONDS)
    assert [payload for _id, payload in broker.pushed()] == [b"before", b"after"]


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (BadStreamError, {"stream": SURROGATE}),
        (BadTopicError, {"topic": "\ud800"}),
        (TypeError, {"topic": UUID_}),
        (TypeError, {"payload": "text"}),
        (ValueError, {"id": SURROGATE}),
        (ValueError, {"expect": 2**64}),
        (ValueError, {"expect_topic": UUID_}),
    ],
)
def test_a_publish_of_what_can_not_be_sent_is_refused_and_the_others_go_on(
    broker: ScriptedBroker, error: type[Exception], arguments: dict[str, Any]
) -> None:
    broker.on[wire.PUBLISH] = lambda _message: 1
    given = {"stream": "s", "topic": "t", "payload": b"x", **arguments}
    with Publisher(endpoint=broker.endpoint) as publisher:
        with pytest.raises(error):
            publisher.publish(**given)
        assert publisher.publish("s", b"\xff", b"x").wait(SECONDS) == 1


def test_topics_of_a_reader_and_ids_of_letters_are_checked_one_by_one(broker: ScriptedBroker) -> None:
    with pytest.raises(BadTopicError, match="topic"):
        Reader("s", topics=["\ud800"], endpoint=broker.endpoint)
    with pytest.raises(TypeError):
        Reader("s", topics=[7], endpoint=broker.endpoint)  # type: ignore[list-item]
    with Client(endpoint=broker.endpoint) as client:
        which: Any
        for which in ({"ids": ["a", SURROGATE]}, {"ids": [7]}, {"reason": SURROGATE}, {"since": NAN}):
            with pytest.raises((TypeError, ValueError), match=next(iter(which))):
                client.dead_letters.redrive("q", **which)
            with pytest.raises((TypeError, ValueError), match=next(iter(which))):
                client.dead_letters.discard("q", **which)
        with pytest.raises(TypeError, match="size"):
            client.dead_letters.discard("q", size=7)  # type: ignore[call-arg]


class Name(str):
    """A text that can't be compared, measured or hashed."""

    def fail(self, *_: object) -> Any:
        raise RuntimeError("no")

    __slots__ = ()
    __eq__ = __hash__ = __len__ = __str__ = __format__ = __getitem__ = fail


class Bytes(bytes):
    """Bytes that can't be measured or converted."""

    def fail(self, *_: object) -> Any:
        raise RuntimeError("no")

    __len__ = __bytes__ = __eq__ = __hash__ = __getitem__ = fail


def test_subclasses_of_text_and_bytes_are_sent_as_what_they_hold(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", Bytes(b"x"), id=Name("id")).wait(SECONDS)
    assert broker.pushed() == [("id", b"x")]


def test_a_request_that_can_not_be_packed_ends_alone(broker: ScriptedBroker) -> None:
    """Whatever gets past the checks: the connection and its other requests go on."""
    answers: list[Any] = []
    role = Questions()
    connection = Connection(broker.endpoint, role)
    role.attach(connection)
    connection.start()
    try:
        role.ask(wire.PING, timeout=SECONDS)
        refused = threading.Event()

        def answered(_value: Any, error: SluiceError | None) -> None:
            answers.append(error)
            refused.set()

        def ask() -> None:
            connection.request(wire.PUSH, "q", [[SURROGATE]], answered=answered)

        connection.call(ask)
        assert refused.wait(SECONDS)
        role.ask(wire.PING, timeout=SECONDS)
    finally:
        connection.close()
    assert isinstance(answers[0], BadFramesError)
    assert len(broker.of(wire.HELLO)) == 1


def test_more_than_the_broker_reads_is_refused_here_for_it_would_cut_the_connection() -> None:
    small = ScriptedBroker(limit=100).start()
    most = 2 * 100 + (2 << 20)
    try:
        with Client(endpoint=small.endpoint) as client:
            with pytest.raises(TooLargeError, match=f"this broker reads {most} at once"):
                client.schedules.add("nightly", "q", bytes(most), every=60)
            client.ping(SECONDS)
        # When it was pushed before the broker has told its limit
        with Producer(endpoint=small.endpoint) as producer:
            early = producer._made(PushReceipt, "q", b"", None, {})
            early._payload = bytes(most)
            producer._enqueue(early)
            with pytest.raises(TooLargeError):
                early.wait(SECONDS)
        assert {message.verb for message in small.received} <= {wire.HELLO, wire.PING, wire.BYE}
    finally:
        small.stop()


# ------------------------------------------------------------------- handlers


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class MuteReject(Reject):
    def __str__(self) -> str:
        raise SystemExit


class Numbered(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307


class Late(Retry):
    """Made without what a Rollback has."""

    def __init__(self) -> None:
        pass


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Stranger(Exception, metaclass=Nameless):
    pass


class Result:
    """A result that is none, and can't even be looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class ClosesBadly:
    """Looks as a coroutine does that is never awaited."""

    def __await__(self) -> Any:
        raise AssertionError

    def close(self) -> None:
        raise RuntimeError("does not close")


def deep(_job: Job) -> Any:
    return deep(_job)


def raising(error: BaseException) -> Callable[[Job], Any]:
    def handler(_job: Job) -> Any:
        raise error

    return handler


def returning(make: Callable[[], Any]) -> Callable[[Job], Any]:
    return lambda _job: make()


@pytest.mark.parametrize(
    ("handler", "verb", "reason"),
    [
        (raising(ValueError(SURROGATE)), "ROLLBACK", "ValueError: a\\udcff"),
        (raising(Reject("\ud800")), "REJECT", "\\ud800"),
        (raising(Reject(b"bytes")), "REJECT", "b'bytes'"),
        (raising(Retry(SURROGATE)), "ROLLBACK", "a\\udcff"),
        (raising(ValueError("x" * 10**7)), "ROLLBACK", "ValueError: " + "x" * 988),
        (raising(ValueError("\udcff" * 5000)), "ROLLBACK", ("ValueError: " + "\\udcff" * 200)[:1000]),
        (raising(Mute()), "ROLLBACK", "Mute: its __str__ raises RuntimeError"),
        (raising(MuteReject()), "REJECT", "MuteReject: its __str__ raises SystemExit"),
        (raising(Numbered()), "ROLLBACK", "Numbered: its __str__ raises TypeError"),
        (raising(Stranger("x")), "ROLLBACK", "object: x"),
        (raising(Late()), "ROLLBACK", "AttributeError: 'Late' object has no attribute 'delay'"),
        (raising(KeyboardInterrupt()), "ROLLBACK", "KeyboardInterrupt: "),
        (raising(SystemExit(3)), "ROLLBACK", "SystemExit: 3"),
        (raising(GeneratorExit()), "ROLLBACK", "GeneratorExit: "),
        (raising(MemoryError()), "ROLLBACK", "MemoryError: "),
        (
            raising(OSError(2, "no file", SURROGATE)),
            "ROLLBACK",
            "FileNotFoundError: [Errno 2] no file: 'a\\udcff'",
        ),
        (deep, "ROLLBACK", "RecursionError: maximum recursion depth exceeded"),
        (returning(Result), "ROLLBACK", "RuntimeError: no class"),
        (returning(lambda: Bytes(b"42")), "COMMIT", b"42"),
        (returning(lambda: memoryview(b"4x2x")[::2]), "COMMIT", b"42"),
        (returning(lambda: Retry("later", NAN)), "ROLLBACK", "ValueError: delay is nan"),
        (returning(lambda: Retry("later", INF)), "ROLLBACK", "ValueError: delay is inf"),
        (returning(lambda: Retry("later", "soon")), "ROLLBACK", "ValueError: delay is 'soon'"),
        (returning(lambda: Forward(SURROGATE)), "ROLLBACK", "ValueError: queue is"),
        (
            returning(lambda: Forward("next", headers={"x": UUID_})),
            "ROLLBACK",
            "BadHeadersError: headers can't",
        ),
        (returning(lambda: FanOut("next")), "ROLLBACK", "TypeError: a child is a Forward"),  # type: ignore[arg-type]
        (lambda job: job.progress(NAN), "ROLLBACK", "ValueError: done is nan"),
        (lambda job: job.progress(1, 2**60), "ROLLBACK", "ValueError: total is"),
        (lambda job: job.progress(UUID_), "ROLLBACK", "TypeError: done is a number"),
        (lambda job: job.progress(1, note=b"x"), "ROLLBACK", "TypeError: note is a str"),
        (lambda job: job.extend(NAN), "ROLLBACK", "ValueError: seconds is nan"),
        (lambda job: job.extend(UUID_), "ROLLBACK", "TypeError: seconds is a number"),
    ],
)
def test_whatever_a_handler_does_its_job_ends_and_the_next_is_taken(
    broker: ScriptedBroker, handler: Callable[[Job], Any], verb: str, reason: str | bytes
) -> None:
    def either(job: Job) -> Any:
        return handler(job) if job.payload == b"bad" else b"good"

    with Worker("q", either, prefetch=2, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"bad", b"next"])
        broker.wait_until(lambda: len(broker.settled()) == 2)
    ended = broker.settled()[b"r-bad"]
    assert ended[0] == verb
    assert ended[1].startswith(reason), ended[1]
    assert len(ended[1]) <= MOST_REASON
    assert broker.settled()[b"r-next"] == ["COMMIT", b"good", None]
    assert len(broker.of(wire.HELLO)) == 1


def test_a_delay_that_has_just_passed_is_none(broker: ScriptedBroker) -> None:
    def handler(_job: Job) -> None:
        raise Retry("later", -0.001)

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        broker.wait_for(wire.SETTLE)
    assert broker.settled() == {b"r-a": ["ROLLBACK", "later", 0.0]}


def test_a_note_that_is_no_utf_8_is_escaped(broker: ScriptedBroker) -> None:
    told = threading.Event()

    def handler(job: Job) -> None:
        job.progress(1, 2, SURROGATE)
        assert told.wait(SECONDS)

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        progress = broker.wait_for(wire.PROGRESS)
        told.set()
    assert progress[0].fields == [[[b"r-a", 1, 2, "a\\udcff"]]]


def test_a_coroutine_that_does_not_close_ends_the_worker_all_the_same(broker: ScriptedBroker) -> None:
    worker = Worker("q", returning(ClosesBadly), endpoint=broker.endpoint)
    worker.start()
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
    broker.wait_for(wire.BYE)
    assert broker.settled() == {b"r-a": ["RELEASE", None, 0.0]}


class Full(logging.Handler):
    """A handler of log lines that ends the thread."""

    def emit(self, _record: logging.LogRecord) -> None:
        raise SystemExit


def test_a_log_that_fails_keeps_no_job(broker: ScriptedBroker) -> None:
    logger, full = logging.getLogger("sluicemq"), Full()
    logger.disabled = False
    logger.addHandler(full)
    try:
        with Worker("q", raising(ValueError("x")), endpoint=broker.endpoint):
            broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
            broker.wait_for(wire.SETTLE)
    finally:
        logger.removeHandler(full)
    assert broker.settled()[b"r-a"] == ["ROLLBACK", "ValueError: x", None]


class Broken(logging.Handler):
    """A handler of log lines that has lost its file."""

    def emit(self, _record: logging.LogRecord) -> None:
        raise OSError("no space left on device")


def test_a_log_that_fails_keeps_no_producer_waiting(broker: ScriptedBroker) -> None:
    logger, broken = logging.getLogger("sluicemq"), Broken()
    logger.disabled = False
    logger.addHandler(broken)
    broker.on[wire.PUSH] = lambda message: [[at, "TOO_LARGE", "no"] for at in range(len(message.fields[1]))]
    try:
        with Producer(window=1, endpoint=broker.endpoint) as producer:
            for _ in range(3):  # each refusal is logged, and makes room for the next
                with pytest.raises(TooLargeError):
                    producer.push("q", b"x").wait(SECONDS)
    finally:
        logger.removeHandler(broken)


# --------------------------------------------------------------------- claims


def test_what_a_claim_is_told_is_checked_and_its_job_stays_to_be_settled(broker: ScriptedBroker) -> None:
    def deliver(message: Any) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, "q", [b"a"])

    broker.on[wire.READY] = deliver
    with Client(endpoint=broker.endpoint) as client, client.jobs.reserve("q", 1, wait=SECONDS) as claim:
        (job,) = claim.jobs
        calls: list[Callable[[], None]] = [
            lambda: job.commit("text"),  # type: ignore[arg-type]
            lambda: job.rollback(7),
            lambda: job.rollback("why", NAN),
            lambda: job.reject(b"bytes"),  # type: ignore[arg-type]
            lambda: job.forward(SURROGATE),
            lambda: job.extend(UUID_),  # type: ignore[arg-type]
            lambda: claim.extend(INF),
            lambda: job.progress(NAN),
        ]
        for call in calls:
            with pytest.raises((TypeError, ValueError)):
                call()
        assert claim.unsettled == [job]
        job.rollback(SURROGATE, -1)
    assert broker.settled() == {b"r-a": ["ROLLBACK", "a\\udcff", 0.0]}


def test_a_claim_that_is_left_by_an_exception_without_text_is_rolled_back(broker: ScriptedBroker) -> None:
    def deliver(message: Any) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, "q", [b"a"])

    broker.on[wire.READY] = deliver
    with (
        Client(endpoint=broker.endpoint) as client,
        pytest.raises(Mute),
        client.jobs.reserve("q", 1, wait=SECONDS),
    ):
        raise Mute
    assert broker.settled() == {b"r-a": ["ROLLBACK", "Mute: its __str__ raises RuntimeError", None]}


# ------------------------------------------------------------------ callbacks


def test_a_callback_that_ends_the_thread_keeps_nobody_else_from_being_told(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: b"42"
    refused: list[PushReceipt] = []

    def leave(*_: object) -> None:
        raise SystemExit

    def note(receipt: PushReceipt, _error: SluiceError) -> None:
        refused.append(receipt)
        raise KeyboardInterrupt

    with Producer(on_refused=note, endpoint=broker.endpoint) as producer:
        replies = [producer.submit("q", b"x") for _ in range(3)]
        for reply in replies:
            reply.add_done_callback(leave)
            reply.add_done_callback(leave)
        assert [reply.result(SECONDS) for reply in replies] == [b"42"] * 3
        broker.on[wire.PUSH] = lambda _message: [[0, "TOO_LARGE", "no"], [1, "TOO_LARGE", "no"]]
        for receipt in producer.push_many("q", [b"a", b"b"]):
            with pytest.raises((TooLargeError, SluiceError)):
                receipt.wait(SECONDS)
        broker.on.pop(wire.PUSH)
        producer.push("q", b"x").wait(SECONDS)
    assert len(broker.of(wire.HELLO)) == 1
    assert len(refused) == 2
