"""The checker of a chaos run finds each breach that is planted into clean books, and none in clean ones."""

import json
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos import features
from chaos.backlog import Backlog
from chaos.books import Book, Fact, read
from chaos.breach import Breach
from chaos.job_checks import allowed_again, job_checks
from chaos.ledger import Disturbance, Ledger, disturbances
from chaos.store_checks import process_checks
from chaos.stream_checks import Stored, stream_checks

Line = tuple[float, str, str, str, str, dict[str, Any]]


def pushed(at: float, queue: str, id_: str, **about: Any) -> list[Line]:
    """A push, and its confirmation."""
    return [
        (at, "producer-1", "pushed", queue, id_, about),
        (at + 0.1, "producer-1", "confirmed", queue, id_, {"existed": False, "job": id_}),
    ]


def run(
    at: float,
    queue: str,
    id_: str,
    verdict: str = "commit",
    *,
    payload: str = "",
    program: str = "worker-1",
    job: str = "",
) -> list[Line]:
    """A run of 0.2 s."""
    return [
        (at, program, "begun", queue, id_, {"attempt": 1, "payload": payload or id_, "job": job or id_}),
        (at + 0.2, program, "ended", queue, id_, {"verdict": verdict}),
    ]


def answered(at: float, queue: str, id_: str) -> list[Line]:
    return [(at, "asker-1", "answered", queue, id_, {"result": f"re: {id_}"})]


def cancelled(at: float, id_: str, order: str = "cancel", answer: str = "cancelled") -> list[Line]:
    """An order about a packed job, and its answer; empty: there was none."""
    facts = ("ordered", *([answer] if answer else []))
    return [(at, "producer-1", fact, features.BURSTS, id_, {"order": order}) for fact in facts]


def acknowledged(at: float, queue: str, id_: str) -> list[Line]:
    return [(at, "worker-1", "acknowledged", queue, id_, {"attempt": 1})]


def ledger(*lines: Iterable[Line], faults: Iterable[Disturbance] = ()) -> Ledger:
    return Ledger.of(sorted((Fact(*line) for story in lines for line in story), key=lambda f: f.at), faults)


def kinds(breaches: Iterable[Breach]) -> list[str]:
    return sorted({breach.kind for breach in breaches})


def clean() -> list[list[Line]]:
    """Books of one job of each kind, as they should be."""
    return [
        pushed(0, features.SHORT, "s"), run(1, features.SHORT, "s"), acknowledged(1.3, features.SHORT, "s"),
        pushed(0, features.ORDERS, "o0", key="k", place=0), run(1, features.ORDERS, "o0"),
        pushed(0.5, features.ORDERS, "o1", key="k", place=1), run(2, features.ORDERS, "o1"),
        pushed(0, features.FIRST, "f"), run(1, features.FIRST, "f", "forward"), run(2, features.SECOND, "f"),
        pushed(0, features.FAILING, "r", fate="reject"), run(1, features.FAILING, "r", "reject"),
        run(2, features.FAILED, "r"),
        pushed(0, features.PARENTS, "p"), run(1, features.PARENTS, "p", "fanout"),
        run(2, features.PAGES, "p.1", payload="p.0"), run(2, features.PAGES, "p.2", payload="p.1"),
        run(2, features.PAGES, "p.3", payload="p.2"), answered(3, features.PARENTS, "p"),
        pushed(0, features.ANSWERS, "a"), run(1, features.ANSWERS, "a"), answered(2, features.ANSWERS, "a"),
        pushed(0, features.BURSTS, "bursts-1", fate=""), run(1, features.BURSTS, "bursts-1"),
        acknowledged(1.3, features.BURSTS, "bursts-1"),
        pushed(0, features.BURSTS, "bursts-7", fate="reject"),
        run(1, features.BURSTS, "bursts-7", "reject"), run(2, features.SPOILT, "bursts-7"),
        pushed(0, features.BURSTS, "bursts-9", fate=""), cancelled(1, "bursts-9"),
        pushed(0, features.BURSTS, "bursts-10", fate=""), cancelled(1, "bursts-10", answer=""),
        pushed(0, features.FLOODS, "floods-1", fate=""), run(1, features.FLOODS, "floods-1"),
        run(3, features.TICKS, "tick@2026-11-26T02:00:00Z", payload="tick"),
    ]  # fmt: skip


def test_clean_books_have_no_breach() -> None:
    assert [*job_checks(ledger(*clean()))] == []


def without(queue: str, id_: str) -> list[list[Line]]:
    return [
        [line for line in story if line[1] != "worker-1" or line[3:5] != (queue, id_)] for story in clean()
    ]


@pytest.mark.parametrize(
    ("queue", "id_"),
    [
        (features.SHORT, "s"), (features.SECOND, "f"), (features.FAILED, "r"), (features.PAGES, "p.2"),
        (features.BURSTS, "bursts-1"), (features.SPOILT, "bursts-7"), (features.ANSWERS, "a"),
    ],
)  # fmt: skip
def test_a_confirmed_job_that_is_not_done_is_lost(queue: str, id_: str) -> None:
    assert "lost" in kinds(job_checks(ledger(*without(queue, id_))))


PLANTED: dict[str, tuple[str, list[Line]]] = {
    "a job that nobody pushed": ("unexpected", run(1, features.SHORT, "stranger")),
    "a job with another payload": ("unexpected", run(1, features.SHORT, "s", payload="other")),
    "a fourth child": ("unexpected", run(1, features.PAGES, "p.4", payload="p.3")),
    "a job of no message": ("unexpected", run(1, features.ROUTED, "events-7", payload="m")),
    "a job begun after its acknowledged end": ("again", run(5, features.SHORT, "s")),
    "a job begun after its answer": ("again", run(5, features.ANSWERS, "a")),
    "two jobs of one piece of work": (
        "again",
        [
            line
            for id_ in ("d1", "d2")
            for line in (*pushed(0, features.DEDUPED, id_, work="1-1"), *run(1, features.DEDUPED, id_))
        ],
    ),
    "a job of a group before its turn": (
        "order",
        [*pushed(0.6, features.ORDERS, "o2", key="k", place=2), *run(2.1, features.ORDERS, "o2")],
    ),
    "a cancelled job that is begun": ("again", run(2, features.BURSTS, "bursts-9")),
    "a job that was committed and cancelled": ("again", cancelled(2, "bursts-1", "cancel running")),
    "a burst's job under another id": ("again", run(1, features.BURSTS, "bursts-1", job="another")),
    "a job that is not done and was not there to be cancelled": (
        "lost",
        [
            *pushed(0, features.BURSTS, "bursts-11", fate=""),
            *cancelled(1, "bursts-11", answer="missed"),
        ],
    ),
    "a changed job that is not done": (
        "lost",
        [
            *pushed(0, features.BURSTS, "bursts-12", fate=""),
            *cancelled(1, "bursts-12", "change", answer=""),
        ],
    ),
    "too many at once": (
        "limit",
        [
            line
            for number in range(features.MAX_RUNNING + 1)
            for line in (
                *pushed(0, features.NARROW, f"n{number}"),
                *run(1 + number / 100, features.NARROW, f"n{number}", program=f"worker-{number}"),
            )
        ],
    ),
    "too many of a tenant": (
        "limit",
        [
            line
            for number in range(features.TENANT_MAX_RUNNING + 1)
            for line in (
                *pushed(0, features.TENANTS, f"t{number}", tenant="ada"),
                *run(1 + number / 100, features.TENANTS, f"t{number}", program=f"worker-{number}"),
            )
        ],
    ),
    "too many in a second": (
        "limit",
        [
            line
            for number in range(150)
            for line in (
                *pushed(0, features.PACED, f"q{number}"),
                *run(1 + number / 100, features.PACED, f"q{number}"),
            )
        ],
    ),
    "a wrong result": (
        "result",
        [
            *pushed(0, features.ANSWERS, "b"),
            *run(1, features.ANSWERS, "b"),
            (2, "asker-1", "answered", features.ANSWERS, "b", {"result": "re: a"}),
        ],
    ),
    "a parent that ends before its children": (
        "result",
        [
            *pushed(0, features.PARENTS, "w"),
            *run(1, features.PARENTS, "w", "fanout"),
            *answered(1.5, features.PARENTS, "w"),
            *(
                line
                for number in (1, 2, 3)
                for line in run(2, features.PAGES, f"w.{number}", payload=f"w.{number - 1}")
            ),
        ],
    ),
    "a call that hangs": (
        "hung",
        [
            *pushed(0, features.ANSWERS, "h"),
            *run(1, features.ANSWERS, "h"),
            (60, "asker-1", "called", features.ANSWERS, "h", {"seconds": 50, "timeout": 8, "outcome": "x"}),
        ],
    ),
    "a refusal": ("refused", [(1, "producer-1", "refused", features.SHORT, "x", {"code": "DUPLICATE"})]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_breach_of_jobs_is_found_with_its_evidence(name: str) -> None:
    kind, lines = PLANTED[name]
    found = [check for check in job_checks(ledger(*clean(), lines)) if check.kind == kind]
    assert found
    assert all(breach.evidence for breach in found)


def test_what_is_refused_or_done_is_no_backlog(tmp_path: Path) -> None:
    lines = [
        *pushed(0, features.DEDUPED, "first"), *pushed(0, features.DEDUPED, "again"),
        *pushed(0, features.SHORT, "waits"), *run(1, features.DEDUPED, "first"),
        (1, "producer-1", "refused", features.DEDUPED, "again", {"code": "DUPLICATE"}),
    ]  # fmt: skip
    text = "".join(json.dumps([at, *rest]) + "\n" for at, _program, *rest in lines)
    (tmp_path / "producer-1.jsonl").write_text(text)
    assert Backlog(tmp_path).count() == 1


def test_two_minutes_without_a_confirmed_push_are_found_up_to_the_drain() -> None:
    late = pushed(130, features.SHORT, "late")
    [found] = job_checks(ledger(*clean(), late, run(131, features.SHORT, "late")))
    assert (found.kind, len(found.evidence)) == ("stuck", 2)
    drained: Line = (100, "load", "draining", "", "", {})
    assert [*job_checks(ledger(*clean(), [drained], late, run(131, features.SHORT, "late")))] == []


def test_a_worker_that_was_taken_for_dead_may_begin_after_the_end() -> None:
    frozen = Disturbance("SIGSTOP of a client", "worker-2", 0.5, 4.5)
    books = ledger(*clean(), run(5, features.SHORT, "s", program="worker-2"), faults=[frozen])
    assert [*job_checks(books)] == []
    assert sum(allowed_again(books).values()) == 1


def test_a_kill_lets_nobody_begin_after_the_end() -> None:
    killed = Disturbance("kill -9 of a broker", "broker 1", 0.5, 4.5)
    assert kinds(job_checks(ledger(*clean(), run(5, features.SHORT, "s"), faults=[killed]))) == ["again"]


def test_a_push_that_took_long_may_have_been_repeated_where_ids_are_not_remembered() -> None:
    def books(queue: str) -> Ledger:
        return ledger(
            [(0, "producer-1", "pushed", queue, "x", {}), (9, "producer-1", "confirmed", queue, "x", {})],
            run(1, queue, "x"),
            acknowledged(2, queue, "x"),
            run(3, queue, "x"),
        )

    assert kinds(job_checks(books(features.SHORT))) == []
    assert kinds(job_checks(books(features.CLAIMED))) == ["again"]


# ------------------------------------------------------------------ the stream


def stream(*ids: str) -> list[Stored]:
    return [Stored(number, features.OTHER_TOPIC, id_) for number, id_ in enumerate(ids, 1)]


def about_stream(*ids: str, read_by: str = "reader-1") -> list[Line]:
    lines: list[Line] = []
    for number, id_ in enumerate(ids, 1):
        lines += [
            (number, "publisher-1", "published", features.STREAM, id_, {"topic": features.OTHER_TOPIC}),
            (number + 0.1, "publisher-1", "stored", features.STREAM, id_, {"sequence": number}),
            (number + 0.2, read_by, "read", features.STREAM, id_, {"sequence": number}),
            (
                number + 0.3,
                read_by,
                "batch",
                features.STREAM,
                "",
                {"first": number, "last": number, "fence": 1},
            ),
        ]
    return lines


def test_a_clean_stream_has_no_breach() -> None:
    there = {features.STREAM: stream("a", "b", "c")}
    assert [*stream_checks(ledger(about_stream("a", "b", "c")), there)] == []


CHANGES: dict[str, tuple[str, Callable[[list[Line]], list[Line]], list[Stored]]] = {
    "a hole": ("stream", list, [Stored(1, "t", "a"), Stored(3, "t", "c")]),
    "a message twice": ("stream", list, stream("a", "b", "b")),
    "a confirmed message that is gone": ("stream", list, stream("a", "b")),
    "a message that nobody published": ("unexpected", list, stream("a", "b", "c", "d")),
    "a reader that missed one": (
        "stream", lambda lines: [entry for entry in lines if entry[2:5] != ("read", features.STREAM, "b")],
        stream("a", "b", "c"),
    ),
    "a batch that was missed": (
        "stream", lambda lines: [fact for fact in lines if fact[5].get("first") != 2], stream("a", "b", "c"),
    ),
    "a subscription that did not come to the end": (
        "stream", lambda lines: [fact for fact in lines if fact[5].get("first") != 3], stream("a", "b", "c"),
    ),
    "a message that became no job": (
        "lost", list, [*stream("a", "b"), Stored(3, features.ROUTED_TOPIC, "c")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_planted_breach_of_the_stream_is_found(name: str) -> None:
    kind, change, there = CHANGES[name]
    assert kind in kinds(stream_checks(ledger(change(about_stream("a", "b", "c"))), {features.STREAM: there}))


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("stream", [Stored(1, "t", "a"), Stored(2, "t", "a")]),
        ("stream", []),
        ("unexpected", [Stored(1, "t", "a"), Stored(2, "t", "b")]),
    ],
)
def test_each_other_stream_has_what_was_confirmed_once_and_no_more(kind: str, there: list[Stored]) -> None:
    # Given: "b" was published to another stream than "a"
    other = features.SPREAD[0]
    lines: list[Line] = [
        (0, "many-publisher-1", "published", other, "a", {}),
        (1, "many-publisher-1", "stored", other, "a", {"sequence": 1}),
    ]
    books = ledger(about_stream("b"), lines)
    streams = {features.STREAM: stream("b"), other: [Stored(1, "t", "a")]}
    assert [*stream_checks(books, streams)] == []
    assert kind in kinds(stream_checks(books, {**streams, other: there}))


# ------------------------------------------------------------------ processes, books


def test_what_logs_samples_and_programs_show_is_found(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    log = "12:00 INFO broker: counted: received=2 pushed=1\n12:01 ERROR broker: no\nTraceback (most recent)\n"
    (tmp_path / "broker-1" / "broker.log").write_text(log)
    samples = [[at, 1, 2**30, (50 if at < 150 else 500) * 2**20, 20] for at in range(300)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"at": 1, "what": "ended", "victim": "broker 1"}) + "\n"
    )
    book: list[Line] = [
        (1, "load", "failed", "", "worker-1", {"code": 1}),
        (2, "load", "late", "", "asker-1", {}),
    ]
    found = kinds(process_checks(tmp_path, ledger(book)))
    assert found == ["counters", "failed", "log", "memory", "stuck"]


def test_connections_of_clients_that_a_broker_keeps_are_found(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(json.dumps([1, 1, os.getpid(), 50 * 2**20, 20]) + "\n")
    with socket.create_server(("127.0.0.1", 0)) as door, ExitStack() as clients:
        for _ in range(11):
            clients.enter_context(socket.create_connection(door.getsockname()))
            clients.enter_context(door.accept()[0])
        assert kinds(process_checks(tmp_path, ledger([]), closed_within=0.0)) == ["files"]
    assert kinds(process_checks(tmp_path, ledger([]))) == []


def test_a_book_is_read_in_the_order_of_time_with_all_lives_of_a_program(tmp_path: Path) -> None:
    for _ in range(2):
        book = Book(tmp_path, "worker-1")
        book.note("begun", "q", "a", attempt=1)
    assert [fact.what for fact in read(tmp_path)] == ["started", "begun", "started", "begun"]


def test_a_run_that_its_program_did_not_survive_has_no_end() -> None:
    begun: Line = (1, "worker-1", "begun", "q", "a", {"payload": "a"})
    books = ledger([begun, (2, "worker-1", "started", "", "", {})], run(3, "q", "a"))
    assert [seen.verdict for seen in books.runs["q", "a"]] == ["", "commit"]


def test_a_fault_lasts_until_its_own_end(tmp_path: Path) -> None:
    events = [
        {"at": 1, "what": "begin", "fault": "held", "victim": "a"},
        {"at": 2, "what": "begin", "fault": "held", "victim": "b"},
        {"at": 3, "what": "end", "fault": "held", "victim": "b"},
        {"at": 5, "what": "end", "fault": "held", "victim": "a"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert [
        (disturbance.victim, disturbance.begin, disturbance.end) for disturbance in disturbances(tmp_path)
    ] == [("a", 1, 5), ("b", 2, 3)]
