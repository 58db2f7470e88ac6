"""Leases in the store, and how a broker keeps its own."""

from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from integration.lease_times import LEASE, TIME, LeaseTime, a_broker, beats, document, owners, refused
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker import __version__
from sluicemq_broker.store import READS, LeaseStore, Seen, Unclear
from support.fakes import Held, go_on
from support.jobs import NOW


@pytest.fixture
def time() -> LeaseTime:
    return TIME


@pytest.fixture
def leases(documents: Database[dict[str, Any]]) -> LeaseStore:
    leases = LeaseStore(documents)
    leases.prepare()
    return leases


# ------------------------------------------------------------------------ store


def test_a_lease_is_live_from_its_first_moment_and_beginning_it_twice_is_harmless(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    leases.beat(["a"], NOW)
    leases.begin("a", "broker", LEASE, NOW)
    assert leases.live() == {"a": (1, LEASE)}


def test_a_heartbeat_raises_the_counters_of_live_leases_only(leases: LeaseStore) -> None:
    for owner in "abc":
        leases.begin(owner, "broker", LEASE, NOW)
    leases.end("b", NOW)
    live = leases.beat(["a", "b", "unknown"], NOW)
    assert live == 1
    assert leases.live() == {"a": (1, LEASE), "c": (0, LEASE)}


def test_a_lease_is_ended_once(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    assert leases.end("a", NOW)
    assert not leases.end("a", NOW)
    assert not leases.end("unknown", NOW)


def test_a_lease_is_ended_only_if_its_counter_stands_where_it_was_seen(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    leases.beat(["a"], NOW)
    seen_before = leases.end("a", NOW, beat=0)
    seen_now = leases.end("a", NOW, beat=1)
    assert seen_before is None
    assert seen_now == Seen("broker", NOW, NOW, NOW, __version__, READS)
    assert leases.live() == {}


def test_a_dead_lease_is_removed_after_a_day(documents: Database[dict[str, Any]], leases: LeaseStore) -> None:
    indexes = documents["owners"].index_information().values()
    assert [
        (index["key"], index["expireAfterSeconds"]) for index in indexes if "expireAfterSeconds" in index
    ] == [([("ended_at", 1)], 86400)]


# ---------------------------------------------------------------------- our own


def test_an_owner_id_is_used_once_its_lease_is(leases: LeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = owners(leases)
    monkeypatch.setattr(leases, "begin", refused)
    with pytest.raises(UnavailableError):
        broker.use()
    nothing = broker.own_ids()
    monkeypatch.undo()
    owner = broker.use()
    assert nothing == []
    assert leases.live() == {owner: (0, LEASE)}
    assert broker.use() == owner


def test_jobs_are_handed_out_for_two_thirds_of_a_lease_since_the_heartbeat_was_sent(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = a_broker(leases)
    beat = leases.beat

    def slow(owners: list[str], now: float, _worked: float) -> int:
        time.passes(9.0)  # the answer takes so long; the lease may have been raised at once
        return beat(owners, now)

    monkeypatch.setattr(leases, "beat", slow)
    broker.beat()
    assert broker.sure
    time.passes(0.99)
    assert broker.sure
    time.passes(0.02)
    assert not broker.sure


def test_a_heartbeat_that_fails_makes_nothing_sure(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = a_broker(leases)
    monkeypatch.setattr(leases, "beat", refused)
    time.passes(10.1)
    with pytest.raises(UnavailableError):
        broker.beat()
    assert not broker.sure


def test_one_reply_that_is_held_costs_no_certainty_and_no_lease(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, beat, sure = a_broker(leases), leases.beat, list[bool]()
    beats(time, broker)

    def held_once(owners: list[str], now: float, _worked: float) -> int:
        answer = beat(owners, now)
        if not sure:
            time.passes(LEASE / 5)
            sure.append(broker.sure)
            raise Unclear("no reply")
        sure.append(broker.sure)
        return answer

    monkeypatch.setattr(leases, "beat", held_once)
    beats(time, broker)
    assert sure == [True, True]
    assert broker.sure
    assert leases.live() == {broker.current: (3, LEASE)}


def test_whoever_seems_gone_is_asked_for_again_for_certain(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    leases.begin("b", "broker", LEASE, NOW)
    leases.end("b", NOW)
    assert [leases.is_live(name) for name in ("a", "b", "unknown")] == [True, False, False]


@pytest.fixture
def elsewhere(documents: Database[dict[str, Any]], mongo: Any) -> Iterator[LeaseStore]:
    other = mongo[f"{documents.name}_b"]
    yield LeaseStore(other)
    mongo.drop_database(other.name)


def test_an_id_has_a_lease_in_every_database_and_is_lost_if_it_is_lost_in_one(
    leases: LeaseStore, elsewhere: LeaseStore, time: LeaseTime
) -> None:
    lost: list[str] = []
    broker = owners(leases, "broker", {"b": elsewhere})
    broker.on_lost(lost.append)
    old = broker.use()
    beats(time, broker, count=2)
    both = (leases.live(), elsewhere.live())
    elsewhere.end(old, NOW)
    beats(time, broker)
    assert both == ({old: (2, LEASE)}, {old: (2, LEASE)})
    assert lost == [old]
    assert leases.live().keys() == elsewhere.live().keys() == {broker.current}
    assert broker.live("b") == broker.live() == {broker.current}
    broker.end()
    assert (leases.live(), elsewhere.live()) == ({}, {})


def test_a_holder_is_looked_for_where_its_jobs_lie(leases: LeaseStore, elsewhere: LeaseStore) -> None:
    broker = owners(leases, "broker", {"b": elsewhere})
    elsewhere.begin("other", "other", LEASE, NOW)
    assert (broker.is_live("other", "b"), broker.is_live("other")) == (True, False)
    assert (broker.live("b"), broker.live()) == ({"other"}, set())


def test_a_database_that_fails_keeps_the_lease_in_no_other_from_being_raised(
    leases: LeaseStore, elsewhere: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = owners(leases, "broker", {"b": elsewhere})
    owner = broker.use()
    monkeypatch.setattr(leases, "beat", refused)
    time.passes(LEASE)
    with pytest.raises(UnavailableError):
        broker.beat()
    assert elsewhere.live() == {owner: (1, LEASE)}
    assert not broker.sure


def test_a_silent_broker_is_declared_dead_in_the_database_that_it_shares(
    documents: Database[dict[str, Any]], leases: LeaseStore, elsewhere: LeaseStore, time: LeaseTime
) -> None:
    # Given a watcher that never looks at the silent one's own database
    silent = owners(leases, "silent", {"b": elsewhere})
    its_own = LeaseStore(documents.client[f"{documents.name}_c"])
    watcher = owners(its_own, "watcher", {"b": elsewhere})
    old = silent.use()
    watcher.use()
    beats(time, watcher, silent)
    beats(time, watcher, count=7)
    assert elsewhere.live().keys() == {watcher.current}
    assert not watcher.is_live(old, "b")
    documents.client.drop_database(f"{documents.name}_c")


def test_a_broker_without_an_owner_is_not_sure(leases: LeaseStore) -> None:
    broker = owners(leases)
    assert not broker.sure
    broker.use()
    assert broker.sure
    broker.end()
    assert not broker.sure


def test_our_lease_found_dead_is_told_and_a_new_id_is_taken(
    documents: Database[dict[str, Any]], leases: LeaseStore, time: LeaseTime
) -> None:
    lost: list[str] = []
    broker = a_broker(leases)
    broker.on_lost(lost.append)
    old = broker.current
    leases.end(old, NOW)
    beats(time, broker)
    assert lost == [old]
    assert broker.current not in ("", old)
    assert leases.live().keys() == {broker.current}
    assert document(documents, old)["state"] == "dead"


def test_an_end_marks_our_lease_dead(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    broker.end()
    broker.end()
    assert leases.live() == {}
    assert broker.own_ids() == []


def test_an_id_is_ours_while_nobody_can_have_declared_it_dead(leases: LeaseStore, time: LeaseTime) -> None:
    broker = a_broker(leases)
    old = broker.current
    assert broker.keeps(old)
    time.passes(LEASE)
    assert broker.keeps(old)  # it beats, and is sure again
    leases.end(old, NOW)
    time.passes(LEASE)
    assert not broker.keeps(old)


def test_no_two_reservations_have_one_number(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    assert len({broker.new_reservation() for _ in range(100)}) == 100


def test_whether_a_lease_is_live_is_read_as_no_former_primary_can_answer(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[object] = []
    with_options = Collection.with_options

    def noted(collection: Collection[Any], **options: Any) -> Collection[Any]:
        levels.append(options["read_concern"].level)
        return with_options(collection, **options)

    monkeypatch.setattr(Collection, "with_options", noted)
    leases.is_live("a")
    assert levels == ["linearizable"]


def test_a_slow_heartbeat_holds_up_no_work(leases: LeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, held = a_broker(leases), Held()
    monkeypatch.setattr(leases, "beat", lambda owners, *_: held() or len(owners))
    beating = gevent.spawn(broker.beat)
    go_on()
    using = gevent.spawn(broker.use)
    using.join(30)  # shorter than what is held up waits
    assert using.value == broker.current
    held.set()
    beating.get(timeout=60)


def test_a_heartbeat_under_way_at_the_end_leaves_no_lease_behind(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, held, beat = a_broker(leases), Held(), leases.beat
    monkeypatch.setattr(leases, "beat", lambda owners, *rest: held() or beat(owners, *rest))
    beating = gevent.spawn(broker.beat)
    go_on()
    ending = gevent.spawn(broker.end)
    go_on()
    held.set()
    gevent.joinall([beating, ending], timeout=60.0, raise_error=True)
    assert leases.live() == {}
    assert "declared dead" not in caplog.text


def test_after_the_end_no_id_is_begun(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    broker.end()
    with pytest.raises(UnavailableError, match="the broker stops"):
        broker.use()
    broker.beat()
    assert leases.live() == {}
