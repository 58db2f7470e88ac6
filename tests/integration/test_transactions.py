"""Transactions have as many statements for one job as for many, and get smaller where they must."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandListener, CommandStartedEvent

from sluicemq_broker.job import Job, Parent
from sluicemq_broker.store import (
    Aborted,
    Child,
    Completed,
    DeadLetters,
    FanOutEntry,
    ForwardEntry,
    QueueStore,
    RolledBack,
    Unclear,
    dead_children,
    end_children,
    fail_parents,
    fan_out,
    forward,
)
from support.jobs import NOW, ChangesAtOnce, a_job, everything

LATER = NOW + 10
#: The server's codes.
CONFLICT, OF_AGE, TOO_LARGE = 112, 251, 388
MANY = 60


class Statements(CommandListener):
    """The names of the commands that were sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: object) -> None:
        """Not of interest."""

    def failed(self, event: object) -> None:
        """Not of interest."""

    def of(self, what: Callable[[], object]) -> list[str]:
        """Those that this sends."""
        self.names.clear()
        what()
        return [*self.names]


@pytest.fixture
def statements() -> Statements:
    return Statements()


@pytest.fixture
def watched(
    mongo_uri: str, documents: Database[dict[str, Any]], statements: Statements
) -> Iterator[Database[dict[str, Any]]]:
    """The database, over a client whose statements are counted."""
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[statements]) as client:
        yield client[documents.name]


@pytest.fixture
def changes(watched: Database[dict[str, Any]]) -> ChangesAtOnce:
    """Orders over that client."""
    return ChangesAtOnce(watched)


@pytest.fixture
def mail(watched: Database[dict[str, Any]]) -> QueueStore:
    return prepared(watched, "mail")


@pytest.fixture
def pages(watched: Database[dict[str, Any]]) -> QueueStore:
    return prepared(watched, "pages")


def prepared(database: Database[dict[str, Any]], name: str) -> QueueStore:
    store = QueueStore(database, f"queue.{name}")
    store.prepare()
    store.groups.prepare()
    return store


def reserved(store: QueueStore, count: int, hold: int = 1, prefix: str = "p") -> list[Job]:
    """So many jobs that are held."""
    store.push([a_job(f"{prefix}{number}") for number in range(count)], NOW)
    return list(store.reserve(count, LATER, "worker", hold).jobs)


def families(parents: list[Job], pages: QueueStore, count: int = 2) -> list[FanOutEntry]:
    """The fan-outs of these."""
    made = []
    for parent in parents:
        children = [a_job(f"{parent.id}.{number}") for number in range(1, count + 1)]
        for child in children:
            child.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
        made.append(
            FanOutEntry(parent, tuple(Child(pages, child, inherits=False) for child in children), b"all")
        )
    return made


def children_of(mail: QueueStore, pages: QueueStore, parents: int) -> list[Completed]:
    """The children of so many parents, two each, which are held."""
    assert fan_out(mail, families(reserved(mail, parents), pages), LATER) == {}
    jobs = pages.reserve(2 * parents, LATER, "worker", 2).jobs
    return [Completed(job, b"", "worker", LATER) for job in sorted(jobs, key=lambda job: job.id)]


def removed(changes: ChangesAtOnce) -> None:
    changes.purge("pages", "ready", LATER)


# ------------------------------------------------------- statements do not grow with the jobs


def test_children_of_many_parents_end_with_as_many_statements_as_one(
    mail: QueueStore, pages: QueueStore, statements: Statements
) -> None:
    children = children_of(mail, pages, MANY)
    one = statements.of(lambda: end_children(pages, children[:1], LATER, lambda _name: mail))
    rest = children[2::2]
    many = statements.of(lambda: end_children(pages, rest, LATER, lambda _name: mail))
    assert (one, many) == (["find", "update", "delete", "commitTransaction"],) * 2
    last = [children[1], *children[3::2]]
    ends = statements.of(lambda: end_children(pages, last, LATER, lambda _name: mail))
    assert len(ends) == len(many)
    assert (everything(mail), everything(pages)) == ({}, {})


def test_many_fan_outs_cost_as_one(mail: QueueStore, pages: QueueStore, statements: Statements) -> None:
    first, *others = families(reserved(mail, MANY), pages)
    fan_out(mail, [first], LATER)  # the indexes are there then
    one = statements.of(lambda: fan_out(mail, others[:1], LATER))
    many = statements.of(lambda: fan_out(mail, others[1:], LATER))
    assert one == many == ["update", "insert", "commitTransaction"]


def test_many_forwards_cost_as_one(mail: QueueStore, pages: QueueStore, statements: Statements) -> None:
    jobs = reserved(mail, MANY)

    def go(these: list[Job]) -> None:
        on = [ForwardEntry(job, pages, a_job(job.id), frozenset(), "worker", NOW, None) for job in these]
        assert forward(mail, on, LATER) == {}

    go(jobs[:1])
    assert statements.of(lambda: go(jobs[1:2])) == statements.of(lambda: go(jobs[2:]))
    assert len(everything(pages)) == MANY


def test_many_parents_hear_of_their_dead_children_with_as_many_statements_as_one(
    mail: QueueStore, pages: QueueStore, statements: Statements
) -> None:
    children = [child.job for child in children_of(mail, pages, MANY)]
    pages.roll_back([RolledBack(job, "no ink", "worker", dead=True) for job in children], LATER)
    parents = list({child.parent: "no ink" for child in dead_children(pages, NOW, 2 * MANY) if child.parent})
    one = statements.of(lambda: fail_parents(mail, {parents[0]: "no ink"}, LATER))
    many = statements.of(lambda: fail_parents(mail, dict.fromkeys(parents[1:], "no ink"), LATER))
    assert one == many == ["update", "find"]
    assert {row["state"] for row in everything(mail).values()} == {"dead"}


def test_many_children_that_are_removed_take_as_many_statements_as_one(
    mail: QueueStore, pages: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    fan_out(mail, families(reserved(mail, MANY), pages), LATER)
    sent: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("bulk_write", "find_one_and_update", "update_one"):
            patch.setattr(Collection, name, counted(getattr(Collection, name), name, sent))
        changes.purge("pages", "ready", LATER)
    assert sent == ["bulk_write"]
    assert {row["state"] for row in everything(mail).values()} == {"dead"}


def counted(statement: Callable[..., Any], name: str, sent: list[str]) -> Callable[..., Any]:
    def counts(self: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(name)
        return statement(self, *arguments, **options)

    return counts


# ------------------------------------------------------------- what MongoDB breaks off


def broken_off(code: int) -> OperationFailure:
    error = OperationFailure("MongoDB says so", code)
    error._add_error_label("TransientTransactionError")
    return error


def breaking(
    statement: Callable[..., Any], code: int, times: int, tried: list[int], above: int = 0
) -> Callable[..., Any]:
    """A statement for more than so many jobs that is broken off so often."""

    def breaks(self: Any, these: Any, *arguments: Any, **options: Any) -> Any:
        count = len(these["_id"]["$in"]) if isinstance(these, dict) else len(these)
        tried.append(count)
        if count > above and len(tried) <= times:
            raise broken_off(code)
        return statement(self, these, *arguments, **options)

    return breaks


@pytest.mark.parametrize("code", [OF_AGE, TOO_LARGE, CONFLICT])
def test_a_transaction_of_many_that_mongodb_ends_is_for_its_caller_to_make_smaller(
    mail: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    children = children_of(mail, pages, 2)
    tried = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "delete_many", breaking(Collection.delete_many, code, 99, tried))
        with pytest.raises(Aborted):
            end_children(pages, children, LATER, lambda _name: mail)
    assert len(tried) == (3 if code == CONFLICT else 1)
    assert len(everything(pages)) == 4


def test_a_write_conflict_is_tried_again_at_once(
    mail: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = children_of(mail, pages, 2)
    tried = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "delete_many", breaking(Collection.delete_many, CONFLICT, 2, tried))
        assert end_children(pages, children, LATER, lambda _name: mail)[0] == {}
    assert tried == [4, 4, 4]


def test_a_transaction_of_one_that_mongodb_ends_is_unclear_and_can_be_repeated(
    mail: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = children_of(mail, pages, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "delete_many", breaking(Collection.delete_many, OF_AGE, 99, []))
        with pytest.raises(Unclear) as raised:
            end_children(pages, children[:1], LATER, lambda _name: mail)
    assert not isinstance(raised.value, Aborted)
    assert end_children(pages, children, LATER, lambda _name: mail)[0] == {}


def test_a_redrive_into_another_queue_goes_on_with_fewer_where_mongodb_ends_many(
    mail: QueueStore, pages: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = [RolledBack(job, "no ink", "worker", dead=True) for job in reserved(mail, MANY)]
    mail.roll_back(dead, LATER)
    tried = list[int]()
    with monkeypatch.context() as patch:
        broken = breaking(Collection.update_many, OF_AGE, 999, tried, above=20)
        patch.setattr(Collection, "update_many", broken)
        assert changes.redrive("mail", DeadLetters(), LATER, pages).moved == MANY
    assert tried[:3] == [60, 30, 15]
    assert len(everything(pages)) == MANY


def test_children_are_removed_in_smaller_parts_where_mongodb_ends_many(
    mail: QueueStore, pages: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    fan_out(mail, families(reserved(mail, 30), pages), LATER)
    tried = list[int]()
    with monkeypatch.context() as patch:
        broken = breaking(Collection.bulk_write, OF_AGE, 999, tried, above=10)
        patch.setattr(Collection, "bulk_write", broken)
        removed(changes)
    assert max(tried) == 30
    assert everything(pages) == {}
    assert {row["state"] for row in everything(mail).values()} == {"dead"}


def test_children_whose_parents_are_in_many_queues_end_in_transactions_of_few_statements(
    watched: Database[dict[str, Any]], pages: QueueStore
) -> None:
    stores = {f"mail{number}": prepared(watched, f"mail{number}") for number in range(20)}
    for number, store in enumerate(stores.values()):
        parents = reserved(store, 1, hold=number + 1)
        made = families(parents, pages, 1)
        for fan in made:
            child = fan.children[0].job
            child.id = f"{store.name}.1"
            child.set_parent(
                Parent(store.name.removeprefix("queue."), fan.job.id, fan.job.seq, fan.job.under)
            )
        fan_out(store, made, LATER)
    jobs = pages.reserve(20, LATER, "worker", 50).jobs
    children = [Completed(job, b"", "worker", LATER) for job in jobs]
    with pytest.raises(Aborted) as raised:
        end_children(pages, children, LATER, stores.__getitem__)
    assert raised.value.usual
    assert end_children(pages, children[:10], LATER, stores.__getitem__)[0] == {}
