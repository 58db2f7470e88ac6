"""Verdicts and requests that can't be read: rolled back or refused, counted, and never taken for a commit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq

from sluicemq.protocol import wire
from support.broker_under_test import AT_ONCE, BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import Smq, code, message, receive
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

MIB = 2**20


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=17, ack=9), queues=AT_ONCE) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """Whatever a test sends, the broker serves afterwards and none of its code has failed."""
    yield shared
    shared.close_sockets()
    assert shared.serves()
    assert "Traceback" not in shared.process.log_text()


def lines(broker: BrokerUnderTest, kind: str) -> int:
    """How many lines of the broker's log are about this kind of mistake."""
    return len(re.findall(rf"WARNING broker: {kind}: ", broker.process.log_text()))


# ------------------------------------------------------------------------ REP

BAD_ANSWERS: list[tuple[list[bytes], str]] = [
    ([b"result", b"more"], "b'result' is not COMMIT"),
    ([b"commit", b"result"], "b'commit' is not COMMIT"),
    ([b"DONE", b"result"], "b'DONE' is not COMMIT"),
    ([b"", b""], "b'' is not COMMIT"),
    ([b"\xff" * 1000, b""], "is not COMMIT"),
    ([b"ROLLBACK", b"why", b"soon"], "b'soon' is not a number of seconds"),
    ([b"ROLLBACK", b"why", b"-1"], "b'-1' is not a number of seconds"),
    ([b"ROLLBACK", b"why", b"nan"], "b'nan' is not a number of seconds"),
    ([b"ROLLBACK", b"why", b"1e99"], "b'1e99' is not a number of seconds"),
    ([b"ROLLBACK", b"why", b""], "b'' is not a number of seconds"),
    ([b"COMMIT", b"a", b"b", b"c"], "this one has 4"),
    ([b"x"] * 1000, "this one has 1000"),
]


@pytest.mark.parametrize(("answer", "expected"), BAD_ANSWERS)
def test_an_unreadable_answer_rolls_back(broker: BrokerUnderTest, answer: list[bytes], expected: str) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    asker = broker.socket(zmq.REQ, doors.front)
    before = broker.counter("bad_verdicts")
    asker.send_multipart([b"", b'{"max_attempts": 2}', b"work"])
    receive(worker)

    worker.send_multipart(answer)

    assert receive(worker) == [b"work"]  # delivered again
    worker.send_multipart(answer)
    letter = broker.dead_letter(doors.queue)
    assert [row["attempt"] for row in letter["errors"]] == [1, 2]
    assert letter["reason"].startswith("bad verdict: ")
    assert expected in letter["reason"]
    heard = receive(asker)
    assert (code(heard), expected in message(heard)) == ("DEAD", True)
    assert broker.counter("bad_verdicts") == before + 2


@pytest.mark.parametrize("verb", [[b"FORWARD"], [b"FANOUT"]], ids=["FORWARD", "FANOUT"])
def test_bad_options_for_a_job_that_goes_on_roll_it_back(broker: BrokerUnderTest, verb: list[bytes]) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    asker = broker.socket(zmq.REQ, doors.front)
    asker.send_multipart([b"", b'{"max_attempts": 1}', b"work"])
    receive(worker)
    worker.send_multipart([*verb, b"elsewhere", b"", msgpack.packb({"x": 3, b"y": 4})])
    assert "takes no" in broker.dead_letter(doors.queue)["reason"]
    assert code(receive(asker)) == "DEAD"


def test_an_answer_nobody_asked_for_is_counted_and_changes_nothing(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    stranger = broker.socket(zmq.DEALER, doors.back)  # a REP could not do this
    asker = broker.socket(zmq.REQ, doors.front)
    before = broker.counter("bad_verdicts")
    for _ in range(50):
        stranger.send_multipart([b"", b"result"])
    wait_until(lambda: broker.counter("bad_verdicts") == before + 50)
    asker.send(b"work")
    assert receive(stranger) == [b"", b"work"]
    stranger.send_multipart([b"", b"done"])
    assert receive(asker) == [b"done"]


def test_a_result_too_long_to_be_remembered_is_no_result(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    asker = broker.socket(zmq.REQ, doors.front)
    asker.send_multipart([b"", b'{"id": "long", "max_attempts": 1}', b"work"])
    receive(worker)
    worker.send(bytes(20 * MIB))
    heard = receive(asker)
    assert (code(heard), "result" in message(heard)) == ("DEAD", True)
    assert "TOO_LARGE" in broker.dead_letter(doors.queue)["reason"]


def test_a_result_too_long_takes_no_other_result_with_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    workers = [broker.socket(zmq.REP, doors.back) for _ in range(2)]
    dealer = broker.socket(zmq.DEALER, doors.front)
    # With its headers the document would be too long, which only MongoDB can tell.
    for number, padding in ((b"1", 60_000), (b"2", 1)):
        headers = {"id": number.decode(), "max_attempts": 1, "headers": {"padding": "x" * padding}}
        dealer.send_multipart([number, b"", b"", msgpack.packb(headers), number])
    jobs = [(receive(worker)[0], worker) for worker in workers]
    for number, worker in jobs:
        worker.send(bytes(16 * MIB - 30_000) if number == b"1" else b"short")
    answers = {answer[0]: answer[2:] for answer in (receive(dealer), receive(dealer))}
    assert answers[b"2"] == [b"short"]
    assert code(answers[b"1"]) == "DEAD"
    assert broker.dead_letter(doors.queue)["reason"].startswith("TOO_LARGE: ")


# ---------------------------------------------------------------- commit door


def _delivered(broker: BrokerUnderTest, doors: Doors) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes]:
    """A worker with one job, its way to the commit door, and the receipt."""
    worker, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    broker.push(doors.front, b"work")
    return worker, commits, receive(worker)[0]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"commit", [], "b'commit' is not COMMIT"),
        (b"", [], "b'' is not COMMIT"),
        (b"RELEASE", [], "b'RELEASE' is not COMMIT"),
        (b"ROLLBACK", [b"why", b"soon"], "b'soon' is not a number of seconds"),
        (b"COMMIT", [b"a", b"b", b"c"], "this one has 5"),
    ],
)
def test_a_verdict_that_cannot_be_read_rolls_back_the_job_of_its_receipt(
    broker: BrokerUnderTest, before: bytes, after: list[bytes], expected: str
) -> None:
    doors = broker.take("ack")
    worker, commits, receipt = _delivered(broker, doors)
    counted = broker.counter("bad_verdicts")
    commits.send_multipart([before, receipt, *after])
    again, _ = receive(worker)
    assert again != receipt
    (job,) = broker.admin.peek(doors.queue, "reserved")
    assert expected in job["errors"][-1]["reason"]
    assert broker.counter("bad_verdicts") == counted + 1


def test_a_verdict_without_a_receipt_is_counted_and_logged_once(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    _, commits, receipt = _delivered(broker, doors)
    counted, logged, began = broker.counter("bad_verdicts"), lines(broker, "bad_verdicts"), time.monotonic()
    for _ in range(100):
        commits.send(b"COMMIT")
    wait_until(lambda: broker.counter("bad_verdicts") == counted + 100)
    assert lines(broker, "bad_verdicts") - logged <= 2 + time.monotonic() - began
    assert broker.counts(doors.queue)["reserved"] == 1
    commits.send_multipart([b"COMMIT", receipt])
    broker.await_count(doors.queue, "reserved", 0)


def test_receipts_that_nobody_has_are_counted_and_change_nothing(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    _, commits, receipt = _delivered(broker, doors)
    counted = broker.counter("late_verdicts")
    made_up = [b"", b"x", b"\0" * 10_000, receipt[:-1], receipt + b"0", receipt.upper() + b"-"]
    for unknown in made_up:
        commits.send_multipart([b"COMMIT", unknown])
    wait_until(lambda: broker.counter("late_verdicts") == counted + len(made_up))
    assert broker.counts(doors.queue)["reserved"] == 1


def test_a_commit_door_settles_no_job_of_a_worker_that_answers_elsewhere(broker: BrokerUnderTest) -> None:
    # Given a job at a library worker, and the commit door of its queue
    doors, library = broker.take("ack"), broker.smq()
    library.ask(wire.READY, doors.queue, 1)
    library.ask(wire.PUSH, doors.queue, [[None, b"work", None]])
    ((receipt, *_),) = library.delivery()
    commits, counted = broker.socket(zmq.PUSH, doors.commit), broker.counter("bad_verdicts")
    # When somebody commits there with the receipt that this worker has, or with no verdict
    commits.send_multipart([b"COMMIT", receipt])
    commits.send_multipart([b"", receipt])
    # Then the job is where it was
    wait_until(lambda: broker.counter("bad_verdicts") >= counted + 2)
    assert broker.counts(doors.queue) == {"reserved": 1}
    assert library.ask(wire.SETTLE, [[receipt, "COMMIT", b"", None]]).fields == [[]]


# ---------------------------------------------------------------------- SMQ/1


def refusal(answer: wire.Message) -> str:
    """The code of an ERROR; its text is a sentence of bearable length."""
    assert answer.verb == wire.ERROR
    error, text = answer.fields
    assert 5 < len(text) < 500
    return str(error)


BAD_SETTLES: list[Any] = [None, "COMMIT", [[b"receipt", "COMMIT", b"", None]] * 1001]

BAD_VERDICTS: list[Any] = [
    [],
    None,
    [b"receipt"],
    [b"receipt", "COMMIT"],
    [b"receipt", "COMMIT", b""],
    ["receipt", "COMMIT", b"", None],
    [b"receipt", b"COMMIT", b"", None],
    [b"receipt", "DONE", b"", None],
    [b"receipt", "COMMIT", 7, None],
    [b"receipt", "ROLLBACK", "why", "soon"],
    [b"receipt", "ROLLBACK", "why", -1],
    [b"receipt", "ROLLBACK", "why", float("nan")],
    [b"receipt", "ROLLBACK", "why", float("inf")],
    [b"receipt", "COMMIT", b"", None, "more"],
]


def test_what_is_no_list_of_verdicts_is_refused(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    for verdicts in BAD_SETTLES:
        assert refusal(library.ask(wire.SETTLE, verdicts)) == "BAD_FRAMES"


def test_unreadable_verdicts_are_refused_by_position_and_the_others_hold(broker: BrokerUnderTest) -> None:
    library, counted = broker.smq(), broker.counter("bad_verdicts")
    broker.make("verdicts")
    library.ask(wire.READY, "verdicts", 2)
    library.ask(wire.PUSH, "verdicts", [[None, b"work", None]] * 2)
    receipts = [job[0] for job in library.delivery()]
    while len(receipts) < 2:
        receipts += [job[0] for job in library.delivery()]
    first, last = ([receipt, "COMMIT", b"", None] for receipt in receipts)
    (problems,) = library.ask(wire.SETTLE, [first, *BAD_VERDICTS, last]).fields
    assert [(at, problem) for at, problem, _ in problems] == [
        (at, "BAD_FRAMES") for at in range(1, 1 + len(BAD_VERDICTS))
    ]
    assert broker.counter("bad_verdicts") == counted + len(BAD_VERDICTS)
    assert not broker.counts("verdicts")


@pytest.mark.parametrize("verdict", [bad for bad in BAD_VERDICTS if bad and bad[0] == b"receipt"])
def test_a_verdict_of_the_library_that_cannot_be_read_rolls_back_the_job_of_its_receipt(
    broker: BrokerUnderTest, verdict: list[Any]
) -> None:
    library = broker.smq()
    broker.make("unread")
    library.ask(wire.READY, "unread", 1)
    library.ask(wire.PUSH, "unread", [[None, b"work", {"max_attempts": 1}]])
    ((receipt, job_id, *_),) = library.delivery()
    (problems,) = library.ask(wire.SETTLE, [[receipt, *verdict[1:]]]).fields
    assert [(at, problem) for at, problem, _ in problems] == [(0, "BAD_FRAMES")]
    wait_until(lambda: broker.counts("unread") == {"dead": 1})
    (shown,) = library.ask(wire.SHOW, "unread", job_id).fields
    assert "bad verdict: a verdict is [receipt" in str(shown)
    library.ask(wire.PUSH, "unread", [[None, b"next", None]])
    ((receipt, *_),) = library.delivery()  # its place is free again
    assert library.ask(wire.SETTLE, [[receipt, "COMMIT", b"", None]]).fields == [[]]
    library.ask(wire.DISCARD, "unread", {})


@pytest.mark.parametrize("queues", [["lent"], ["lent", "idle"]])
def test_a_session_settles_no_deliveries_of_another(broker: BrokerUnderTest, queues: list[str]) -> None:
    library, stranger = broker.smq(), broker.smq()
    for queue in queues:
        broker.make(queue)
        stranger.ask(wire.READY, queue, 0)
    library.ask(wire.READY, "lent", 1)
    library.ask(wire.PUSH, "lent", [[None, b"work", None]])
    ((receipt, *_),) = library.delivery()
    verdict = [receipt, "COMMIT", b"", None]
    (problems,) = stranger.ask(wire.SETTLE, [verdict]).fields
    assert [(at, problem) for at, problem, _ in problems] == [(0, "LEASE_LOST")]
    assert broker.counts("lent") == {"reserved": 1}
    assert library.ask(wire.SETTLE, [verdict]).fields == [[]]
    assert not broker.counts("lent")


def test_a_session_of_two_queues_gives_each_receipt_once(broker: BrokerUnderTest) -> None:
    # Given the first job of each of two queues, at one session
    library = broker.smq()
    receipts: dict[str, bytes] = {}
    for queue in ("left", "right"):
        broker.make(queue)
        library.ask(wire.READY, queue, 1)
        library.ask(wire.PUSH, queue, [[None, b"work", None]])
        ((receipts[queue], *_),) = library.delivery()
    # When that of one of them is committed
    assert library.ask(wire.PROGRESS, [[receipts["left"], 1, 2, "half"]]).fields == [[]]
    assert library.ask(wire.SETTLE, [[receipts["left"], "COMMIT", b"", None]]).fields == [[]]
    # Then the other is there, and has none of what was said of the first
    assert not broker.counts("left")
    assert broker.counts("right") == {"reserved": 1}
    assert "half" not in str(library.ask(wire.PEEK, "right", "reserved", {}).fields)
    assert library.ask(wire.SETTLE, [[receipts["right"], "COMMIT", b"", None]]).fields == [[]]
    assert not broker.counts("right")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_unknown_receipts_are_refused_by_position(broker: BrokerUnderTest, workers: int) -> None:
    library = broker.smq()
    for number in range(workers):
        broker.make(f"nothing-{number}")
        library.ask(wire.READY, f"nothing-{number}", 1)
    settled = library.ask(wire.SETTLE, [[b"x", "COMMIT", b"", None], [b"y", "REJECT", "why", None]])
    extended = library.ask(wire.EXTEND, [b"x", b"y"], 5)
    for answer in (settled, extended):
        assert [(at, field) for at, field, _ in answer.fields[0]] == [(0, "LEASE_LOST"), (1, "LEASE_LOST")]


DEEP = msgpack.unpackb(b"\x91" * 400 + b"\x90")

BAD_REQUESTS: list[tuple[bytes, list[Any]]] = [
    (wire.HELLO, []),
    (wire.HELLO, ["me"]),
    (wire.PUSH, []),
    (wire.PUSH, ["queue"]),
    (wire.PUSH, ["queue", {}]),
    (wire.PUSH, [7, []]),
    (wire.PUSH, ["queue", [[None, b"x", None]] * 1001]),
    (wire.READY, ["queue"]),
    (wire.READY, ["queue", "1"]),
    (wire.READY, ["queue", True]),
    (wire.READY, ["queue", -1]),
    (wire.READY, ["queue", 10**9]),
    (wire.READY, ["queue", 1, "pop"]),
    (wire.READY, ["queue", 1, {"pop": "yes"}]),
    (wire.RESULT, ["default", "id"]),
    (wire.RESULT, ["default", 7, 1]),
    (wire.RESULT, ["default", "id", -1]),
    (wire.RESULT, ["default", "id", float("nan")]),
    (wire.SETTLE, []),
    (wire.EXTEND, [b"receipt", 5]),
    (wire.EXTEND, [[b"receipt"], 0]),
    (wire.EXTEND, [[b"receipt"], float("nan")]),
    (wire.EXTEND, [[b"receipt"], "5"]),
    (wire.EXTEND, [[["receipt"]], 5]),
    (wire.EXTEND, [[{}], 5]),
    (wire.PEEK, ["default"]),
    (wire.PEEK, ["default", "ready", 0]),
    (wire.PEEK, ["default", "asleep", 1]),
    (wire.PURGE, ["default", "reserved"]),
    (wire.CANCEL, ["default", 7]),
    (wire.DELETE, [DEEP]),
]


@pytest.mark.parametrize(("verb", "fields"), BAD_REQUESTS, ids=lambda part: str(part)[:40])
def test_requests_of_wrong_fields_are_no(broker: BrokerUnderTest, verb: bytes, fields: list[Any]) -> None:
    broker.push(broker.doors["push"], b"default", b"so that the queue is there")
    wait_until(lambda: broker.counts("default"))
    library = broker.smq()
    assert refusal(library.ask(verb, *fields)) == "BAD_FRAMES"
    assert library.ask(wire.PING).verb == wire.OK


def test_a_client_that_calls_itself_anything_is_answered(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    for client in (None, 7, "line\nbreak", "x" * 60_000, DEEP):
        assert library.ask(wire.HELLO, {"client": client}).verb == wire.OK


@pytest.mark.parametrize("verb", [b"", b"push", b"DELIVER", b"OK", b"\xff\xfe", b"x" * 100_000])
def test_an_unknown_verb_is_refused_and_counted(broker: BrokerUnderTest, verb: bytes) -> None:
    counted = broker.counter("bad_verb")
    library = broker.smq()
    assert refusal(library.ask(verb)) == "BAD_VERB"
    assert broker.counter("bad_verb") == counted + 1
    assert library.ask(wire.PING).verb == wire.OK


@pytest.mark.parametrize(
    "frames",
    [
        [b"SMQ1"],
        [b"SMQ1", b"PING"],
        [b"SMQ1", b"PING", b""],
        [b"SMQ1", b"PING", b"\x80"],
        [b"SMQ1", b"PING", b"\x90"],
        [b"SMQ1", b"PING", b"\x91\xff"],
        [b"SMQ1", b"PING", b"\x91\xc3"],
        [b"SMQ1", b"PING", b"\x91\xcf" + b"\xff" * 8],
        [b"SMQ1", b"PING", b"\x91"],
        [b"SMQ1", b"PING", b"\xdd\xff\xff\xff\xff"],
        [b"SMQ1", b"PING", b"\x91" * 2000],
        [b"SMQ1", b"PING", b"\x91\x01", b""],
        [b"SMQ1", *[b"x"] * 5000],
    ],
    ids=lambda frames: repr(frames)[:60],
)
def test_frames_that_are_no_message_are_refused(broker: BrokerUnderTest, frames: list[bytes]) -> None:
    counted = broker.counter("bad_frames")
    library = broker.smq()
    assert refusal(library.say(*frames)) == "BAD_FRAMES"
    assert broker.counter("bad_frames") == counted + 1
    assert library.ask(wire.PING).verb == wire.OK


@pytest.mark.parametrize(
    "frames", [[b"SMQ2", b"PING", b"\x91\x01"], [b"", b"work"], [b"MDPC01"], [b"x" * 10**6]]
)
def test_other_versions_and_protocols_hear_so_and_end(broker: BrokerUnderTest, frames: list[bytes]) -> None:
    counted = broker.counter("bad_version")
    stranger = broker.socket(zmq.DEALER, broker.doors["smq"])
    monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    answer = Smq(stranger).say(*frames)
    assert refusal(answer) == "BAD_VERSION"
    assert monitor.poll(60_000)
    assert broker.counter("bad_version") == counted + 1
    stranger.disable_monitor()


def test_a_flood_of_unknown_verbs_is_answered_and_logged_once(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    logged, began = lines(broker, "bad_verb"), time.monotonic()
    asked = 0
    while asked < 500 or lines(broker, "bad_verb") == logged:  # a line for an earlier one may be fresh
        if asked % 90 == 89:  # one that says little else is cut at the hundredth
            library = broker.smq()
        assert refusal(library.ask(b"WHAT")) == "BAD_VERB"
        asked += 1
    assert 1 <= lines(broker, "bad_verb") - logged <= 2 + time.monotonic() - began


def test_a_name_with_line_breaks_forges_no_line_of_the_log(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    library.ask(wire.HELLO, {"client": "me\n12:00:00 ERROR broker: forged"})
    counted = broker.counter("bad_queue")
    library.ask(wire.READY, "no such name", 1)
    wait_until(lambda: broker.counter("bad_queue") == counted + 1)
    assert not re.search(r"^12:00:00", broker.process.log_text(), re.MULTILINE)
    broker.process.wait_log(r"from me\n12:00:00 ERROR broker: forged tcp://127.0.0.1")
