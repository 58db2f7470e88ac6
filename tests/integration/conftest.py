"""A queue's store over the real MongoDB, empty for each test; one database for each file of tests."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from integration.explained_plans import Explainer
from sluicemq import Client
from sluicemq_broker.store import Inspector, QueueStore, collection, connect
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest
from support.http_reader import Web
from support.jobs import ChangesAtOnce


@pytest.fixture(scope="session")
def mongo(mongo_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client as the broker makes it."""
    with connect(mongo_uri) as client:
        yield client


@pytest.fixture(scope="module")
def own_database(mongo: MongoClient[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """A database of this file's own; a new one for each test would take 0.1 s each time."""
    name = f"test_{token_hex(6)}"
    yield mongo[name]
    mongo.drop_database(name)


@pytest.fixture
def documents(own_database: Database[dict[str, Any]]) -> Database[dict[str, Any]]:
    """The database, with every collection emptied."""
    for name in own_database.list_collection_names():
        own_database[name].delete_many({})
    return own_database


@pytest.fixture
def noticed() -> list[tuple[str, str]]:
    """Findings of ``store`` that should not be there: kind and text."""
    return []


@pytest.fixture
def store(documents: Database[dict[str, Any]], noticed: list[tuple[str, str]]) -> QueueStore:
    """The empty queue ``mail``, with its indexes."""
    mail = QueueStore(documents, collection("mail"), notice=lambda *notice: noticed.append(notice))
    mail.prepare()
    return mail


@pytest.fixture
def changes(documents: Database[dict[str, Any]]) -> ChangesAtOnce:
    """Bulk changes for the jobs of this test's database."""
    return ChangesAtOnce(documents)


@pytest.fixture
def inspector(documents: Database[dict[str, Any]]) -> Inspector:
    return Inspector(documents)


@pytest.fixture(scope="module")
def explainer(mongo_uri: str) -> Iterator[Explainer]:
    """The plans of what clients with this listener have asked MongoDB."""
    listener = Explainer(mongo_uri)
    yield listener
    listener.close()


@pytest.fixture
def client(broker: BrokerProcess | BrokerUnderTest) -> Iterator[Client]:
    """The library at the broker that a file's tests have."""
    with Client(endpoint=broker.doors["smq"]) as client:
        yield client


@pytest.fixture
def web(shared_broker: BrokerUnderTest) -> Web:
    return Web(shared_broker.process.http)
