"""The proxy itself: what it does to a statement is what its tests rely on."""

import threading
from collections.abc import Iterator

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from support.waiting import wait_until

Client = MongoClient[dict[str, object]]


@pytest.fixture
def proxy(mongo_uri: str) -> Iterator[CuttingProxy]:
    with CuttingProxy(mongo_uri) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: CuttingProxy) -> Iterator[Client]:
    with Client(proxy.uri, retryWrites=False) as client:
        yield client


@pytest.fixture
def real(mongo_uri: str) -> Iterator[Client]:
    with Client(mongo_uri) as client:
        yield client


def is_insert(command: Command) -> bool:
    return command.name == "insert"


def in_thread(function: object) -> threading.Thread:
    thread = threading.Thread(target=function)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_held_reply_is_applied(proxy: CuttingProxy, behind: Client, real: Client, database: str) -> None:
    held = proxy.hold(is_insert)
    inserting = in_thread(lambda: behind[database].jobs.insert_one({"_id": 1}))
    [reply] = held.wait()
    assert real[database].jobs.count_documents({}) == 1
    behind[database].jobs.insert_one({"_id": 2})
    assert inserting.is_alive()
    assert reply.command.statements == [{"_id": 1}]
    reply.release()
    inserting.join(60)
    assert not inserting.is_alive()


def test_a_held_reply_that_is_cut_is_never_heard(proxy: CuttingProxy, behind: Client, database: str) -> None:
    held = proxy.hold(is_insert)
    heard: list[type[Exception]] = []

    def insert() -> None:
        try:
            behind[database].jobs.insert_one({"_id": 1})
        except AutoReconnect as error:
            heard.append(type(error))

    inserting = in_thread(insert)
    held.wait()
    held.cut()
    inserting.join(60)
    assert heard == [AutoReconnect]


def test_a_late_statement_lands_when_its_sender_has_repeated_it(
    proxy: CuttingProxy, behind: Client, real: Client, database: str
) -> None:
    delayed = proxy.delay(is_insert)
    with Client(proxy.uri, retryWrites=True) as sender, sender.start_session() as session:
        inserting = in_thread(lambda: sender[database].jobs.insert_one({"_id": 1}, session=session))
        [late] = delayed.wait()
        late.cut()
        inserting.join(60)
    assert late.given_up
    assert late.command.session
    assert late.command.txn_number
    real[database].jobs.delete_one({"_id": 1})
    answer = late.land()
    assert answer["ok"] == 1
    assert real[database].jobs.count_documents({}) == 0  # the server knows the repetition by its number


def test_functions_run_in_between(proxy: CuttingProxy, behind: Client, real: Client, database: str) -> None:
    found: list[int] = []
    jobs = real[database].jobs
    after = proxy.after(is_insert, lambda: found.append(jobs.count_documents({})))
    before = proxy.before(
        lambda command: command.name == "delete", lambda: found.append(jobs.count_documents({}))
    )
    behind[database].jobs.insert_one({"_id": 1})
    behind[database].jobs.delete_one({"_id": 1})
    after.wait()
    before.wait()
    assert found == [1, 1]


def test_what_a_function_raises_fails_the_test(proxy: CuttingProxy, behind: Client, database: str) -> None:
    watched = proxy.after(is_insert, lambda: 1 / 0)
    behind[database].jobs.insert_one({"_id": 1})
    with pytest.raises(ZeroDivisionError):
        watched.wait()


def test_one_cut_off_comes_back_when_connected(proxy: CuttingProxy, behind: Client, database: str) -> None:
    behind[database].jobs.insert_one({"_id": 1})
    proxy.cut_off()
    with (
        pytest.raises(AutoReconnect),
        Client(proxy.uri, retryWrites=False, serverSelectionTimeoutMS=300) as other,
    ):
        other[database].jobs.insert_one({"_id": 2})
    proxy.connect()
    wait_until(lambda: behind[database].jobs.count_documents({}) == 1)
