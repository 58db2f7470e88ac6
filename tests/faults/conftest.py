"""What tests of several files here share."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.proxied import Site, Stage, sites


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[Site]]:
    """Two brokers for all tests here; each has a queue of its own."""
    database = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        with sites(mongo_uri, database) as brokers:
            yield brokers
        mongo.drop_database(database)


@pytest.fixture
def stage(brokers: list[Site], mongo_uri: str) -> Iterator[Stage]:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        stage = Stage(brokers, mongo, f"q{token_hex(4)}")
        try:
            yield stage
        finally:
            stage.close()
