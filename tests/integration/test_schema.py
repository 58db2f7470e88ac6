"""The schema number of databases: which brokers may begin, which must stop, what they may write."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.database import Database

from integration.lease_times import TIME, a_broker, beats, document
from sluicemq.protocol.errors import OldBrokerError, UnavailableError
from sluicemq_broker import __version__
from sluicemq_broker.context import Schema, can_read
from sluicemq_broker.store import READS, SCHEMA, LeaseStore, NewerSchema, SchemaNumbers, SchemaStore, Seen
from support.jobs import NOW

BEFORE, OLDEST, NEWER = SCHEMA - 1, READS[0], SCHEMA + 1


@pytest.fixture
def other(documents: Database[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """Another database of one broker."""
    other = documents.client[f"{documents.name}_b"]
    yield other
    documents.client.drop_database(other)


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> SchemaStore:
    return SchemaStore(documents)


def kept(documents: Database[dict[str, Any]]) -> dict[str, Any] | None:
    return documents["meta"].find_one({}, {"_id": False})


def keep(documents: Database[dict[str, Any]], number: int) -> None:
    documents["meta"].insert_one({"_id": "schema", "number": number})


def test_a_new_database_gets_this_schema_at_once_and_may_be_opened_again(
    documents: Database[dict[str, Any]], store: SchemaStore
) -> None:
    assert store.open() == store.open() == SchemaNumbers(SCHEMA, SCHEMA)
    assert kept(documents) == {"number": SCHEMA}


def test_a_database_of_the_last_schema_stays(documents: Database[dict[str, Any]], store: SchemaStore) -> None:
    keep(documents, BEFORE)
    assert store.open() == SchemaNumbers(BEFORE, BEFORE)
    assert kept(documents) == {"number": BEFORE}


def test_a_database_older_than_all_that_is_read_is_raised_to_the_oldest(
    documents: Database[dict[str, Any]], store: SchemaStore
) -> None:
    keep(documents, OLDEST - 1)
    assert store.open() == SchemaNumbers(OLDEST, OLDEST)
    assert kept(documents) == {"number": OLDEST}


def test_a_newer_database_is_left_as_it_is(documents: Database[dict[str, Any]], store: SchemaStore) -> None:
    keep(documents, NEWER)
    for look in (store.open, store.read):
        with pytest.raises(NewerSchema, match=f"schema {NEWER}, this one reads {OLDEST} to {SCHEMA}"):
            look()
    assert kept(documents) == {"number": NEWER}


def test_an_upgrade_first_refuses_old_brokers_and_then_has_the_new_form_written(
    documents: Database[dict[str, Any]], store: SchemaStore
) -> None:
    keep(documents, BEFORE)
    for _ in range(2):
        store.close(SCHEMA)
        assert store.read() == SchemaNumbers(SCHEMA, BEFORE)
    for _ in range(2):
        store.finish(SCHEMA)
        assert store.read() == SchemaNumbers(SCHEMA, SCHEMA)
    assert kept(documents) == {"number": SCHEMA}


def test_the_first_step_of_an_upgrade_can_be_taken_back_and_the_second_can_not(
    documents: Database[dict[str, Any]], store: SchemaStore
) -> None:
    keep(documents, BEFORE)
    store.close(SCHEMA)
    for _ in range(2):
        store.reopen(SCHEMA)
        assert kept(documents) == {"number": BEFORE}
    store.finish(SCHEMA)
    assert kept(documents) == {"number": BEFORE}
    store.close(SCHEMA)
    store.finish(SCHEMA)
    store.reopen(SCHEMA)
    store.close(SCHEMA)
    assert kept(documents) == {"number": SCHEMA}


def test_leases_name_the_version_and_the_schemas_that_it_reads(documents: Database[dict[str, Any]]) -> None:
    leases = LeaseStore(documents)
    leases.begin("a", "broker", 15, NOW)
    assert leases.brokers() == [Seen("broker", NOW, NOW, None, __version__, READS)]
    lease = document(documents, "a")
    assert (lease["version"], lease["reads"]) == (__version__, list(READS))


def test_a_lease_that_does_not_say_reads_nothing_of_this_version(documents: Database[dict[str, Any]]) -> None:
    leases = LeaseStore(documents)
    leases.begin("a", "broker", 15, NOW)
    documents["owners"].update_one({}, {"$unset": {"version": "", "reads": ""}})
    assert leases.brokers() == [Seen("broker", NOW, NOW, None, "", (0, 0))]


@pytest.mark.parametrize(("number", "can"), [(1, False), (2, True), (3, True), (4, False)])
def test_a_broker_can_read_what_its_lease_says(number: int, can: bool) -> None:  # noqa: FBT001
    assert can_read((2, 3), number) is can


def test_the_lowest_schema_of_all_databases_says_what_may_be_written(
    documents: Database[dict[str, Any]], other: Database[dict[str, Any]]
) -> None:
    stores = [SchemaStore(documents), SchemaStore(other)]
    keep(documents, BEFORE)
    schema = Schema(stores)
    schema.open()
    # Then: a database that is new beside one of the last schema gets that
    assert kept(other) == {"number": BEFORE}
    assert schema.number == BEFORE
    # When one of two is raised
    stores[0].close(SCHEMA)
    stores[0].finish(SCHEMA)
    schema.follow()
    assert schema.number == BEFORE
    stores[1].close(SCHEMA)
    schema.follow()
    assert schema.number == BEFORE
    stores[1].finish(SCHEMA)
    schema.follow()
    assert schema.number == SCHEMA


def test_a_broker_hears_of_a_higher_number(documents: Database[dict[str, Any]], store: SchemaStore) -> None:
    schema, refused = Schema([store]), list[NewerSchema]()
    schema.open()
    schema.on_newer = refused.append
    documents["meta"].update_one({}, {"$set": {"number": NEWER}})
    with pytest.raises(NewerSchema):
        schema.follow()
    assert len(refused) == 1


def test_a_broker_then_takes_no_new_id(documents: Database[dict[str, Any]], store: SchemaStore) -> None:
    # Given: a broker that was silent while another ended its lease and raised the number
    leases, schema = LeaseStore(documents), Schema([store])
    schema.open()
    broker = a_broker(leases, admit=schema.follow)
    leases.end(broker.current, NOW, silent=True)
    documents["meta"].update_one({}, {"$set": {"number": NEWER}})
    with pytest.raises(NewerSchema):
        beats(TIME, broker)
    assert (broker.current, leases.live()) == ("", {})


class Upgrading:
    """A store of the last schema in two databases, with a broker of this version that has leases in both."""

    def __init__(self, *documents: Database[dict[str, Any]]) -> None:
        self.documents = documents
        for store in self.documents:
            keep(store, BEFORE)
        self.schema = Schema([SchemaStore(store) for store in self.documents])
        self.schema.open()
        leases = [LeaseStore(store) for store in self.documents]
        self.owners = a_broker(leases[0], elsewhere={"b": leases[1]}, admit=self.schema.follow)

    def old_broker(self, database: int = 0) -> None:
        """A broker of the last version begins."""
        LeaseStore(self.documents[database]).begin("old", "host:7", 15, NOW)
        self.documents[database]["owners"].update_one(
            {"_id": "old"}, {"$unset": {"version": ""}, "$set": {"reads": [OLDEST, BEFORE]}}
        )

    def upgrade(self, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Upgrade; ``meanwhile()`` is called when the store is closed to old brokers."""
        return self.schema.upgrade(self.owners.living, lambda _seconds: meanwhile())

    @property
    def numbers(self) -> list[dict[str, Any] | None]:
        return [kept(store) for store in self.documents]


@pytest.fixture
def upgrading(documents: Database[dict[str, Any]], other: Database[dict[str, Any]]) -> Upgrading:
    return Upgrading(documents, other)


def test_an_upgrade_raises_all_databases_and_once_is_enough(upgrading: Upgrading) -> None:
    assert upgrading.upgrade() == BEFORE
    assert upgrading.schema.number == SCHEMA
    assert upgrading.numbers == [{"number": SCHEMA}] * 2
    assert upgrading.upgrade() == SCHEMA


@pytest.mark.parametrize("database", [0, 1])
def test_an_upgrade_is_refused_while_an_old_broker_lives(upgrading: Upgrading, database: int) -> None:
    upgrading.old_broker(database)
    with pytest.raises(
        OldBrokerError, match=rf"host:7 \(an older version, reads schema {BEFORE}, last seen 20.*stop"
    ):
        upgrading.upgrade()
    assert upgrading.numbers == [{"number": BEFORE}] * 2
    # When it has ended
    LeaseStore(upgrading.documents[database]).end("old", NOW)
    assert upgrading.upgrade() == BEFORE


def test_an_old_broker_that_begins_during_an_upgrade_takes_it_back(upgrading: Upgrading) -> None:
    seen: list[dict[str, Any] | None] = []

    def begin() -> None:
        seen.extend(upgrading.numbers)
        upgrading.old_broker()

    with pytest.raises(OldBrokerError, match="host:7"):
        upgrading.upgrade(begin)
    assert seen == [{"number": SCHEMA, "written": BEFORE}] * 2
    assert upgrading.numbers == [{"number": BEFORE}] * 2
    assert upgrading.schema.number == BEFORE


def test_an_upgrade_that_died_half_way_has_nothing_new_written_and_is_repeated(upgrading: Upgrading) -> None:
    def die() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        upgrading.upgrade(die)
    upgrading.schema.follow()
    assert upgrading.schema.number == BEFORE
    assert upgrading.upgrade() == BEFORE
    assert upgrading.numbers == [{"number": SCHEMA}] * 2


def test_an_upgrade_that_another_one_takes_back_at_that_moment_says_so(upgrading: Upgrading) -> None:
    def take_back() -> None:
        for store in upgrading.documents:
            SchemaStore(store).reopen(SCHEMA)

    with pytest.raises(UnavailableError, match="taken back"):
        upgrading.upgrade(take_back)
    assert upgrading.numbers == [{"number": BEFORE}] * 2


def test_an_old_broker_that_wakes_up_behind_an_upgrade_is_named_once_in_the_log(
    upgrading: Upgrading, caplog: pytest.LogCaptureFixture
) -> None:
    def named() -> int:
        return sum("host:7" in message for message in caplog.messages)

    upgrading.old_broker()
    upgrading.schema.look_for_old(upgrading.owners.living())
    assert named() == 0  # it may be there before the upgrade
    LeaseStore(upgrading.documents[0]).end("old", NOW)
    upgrading.upgrade()
    upgrading.documents[0]["owners"].update_one({"_id": "old"}, {"$set": {"state": "live"}})
    for _ in range(2):
        upgrading.schema.look_for_old(upgrading.owners.living())
    assert named() == 1
