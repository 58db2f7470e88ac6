"""Fixtures that several files here share."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.fleet import Fleet
from faults.proxied import ProxiedBroker, SharedQueue, proxied_brokers


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[ProxiedBroker]]:
    """Two brokers for all tests of a file; each has a queue of its own."""
    database = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        with proxied_brokers(mongo_uri, database) as brokers:
            yield brokers
        mongo.drop_database(database)


@pytest.fixture
def shared(brokers: list[ProxiedBroker], mongo_uri: str) -> Iterator[SharedQueue]:
    """A new queue at both."""
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        shared = SharedQueue(brokers, mongo, f"q{token_hex(4)}")
        try:
            yield shared
        finally:
            shared.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet
