"""Owners and leases over the real MongoDB: who may hold jobs, and who is declared dead by whom."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import Any

import gevent
import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from fakes import Held, go_on
from jobs import NOW
from sluicemq.errors import Unavailable
from sluicemq_broker.queue.owners import Owners
from sluicemq_broker.runtime.timer import Timer
from sluicemq_broker.store.connection import ServerClock, Unclear
from sluicemq_broker.store.leases import LeaseStore, Seen

LEASE = 15.0
BEAT = LEASE / 5


class Time(Timer):
    """The time of every broker in a test; it passes when told to."""

    value = 1000.0

    def now(self) -> float:
        return self.value

    def passes(self, seconds: float) -> None:
        self.value += seconds


TIME = Time()


@pytest.fixture
def time() -> Time:
    return TIME


def owners(leases: LeaseStore, name: str = "broker", *more: Any, **options: Any) -> Owners:
    return Owners(leases, ServerClock(), name, LEASE, *more, timer=TIME, **options)


@pytest.fixture
def leases(documents: Database[dict[str, Any]]) -> LeaseStore:
    leases = LeaseStore(documents)
    leases.prepare()
    return leases


def a_broker(leases: LeaseStore, name: str = "broker", lease: float = LEASE, **options: Any) -> Owners:
    broker = Owners(leases, ServerClock(), name, lease, timer=TIME, **options)
    broker.use()
    return broker


def document(documents: Database[dict[str, Any]], owner: str) -> dict[str, Any]:
    return documents["owners"].find_one({"_id": owner}) or {}


def beats(time: Time, *brokers: Owners, count: int = 1) -> None:
    for _ in range(count):
        time.passes(BEAT)
        for broker in brokers:
            broker.beat()


# ------------------------------------------------------------------------- store


def test_a_lease_is_live_from_its_first_moment_and_beginning_it_twice_is_harmless(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    leases.beat(["a"], NOW)
    leases.begin("a", "broker", LEASE, NOW)
    assert leases.live() == {"a": (1, LEASE)}


def test_a_heartbeat_raises_the_counters_of_live_leases_only(leases: LeaseStore) -> None:
    # Given
    for owner in "abc":
        leases.begin(owner, "broker", LEASE, NOW)
    leases.end("b", NOW)
    # When
    live = leases.beat(["a", "b", "unknown"], NOW)
    # Then
    assert live == 1
    assert leases.live() == {"a": (1, LEASE), "c": (0, LEASE)}


def test_a_lease_is_ended_once(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    assert leases.end("a", NOW)
    assert not leases.end("a", NOW)
    assert not leases.end("unknown", NOW)


def test_a_lease_is_ended_only_if_its_counter_stands_where_it_was_seen(leases: LeaseStore) -> None:
    # Given
    leases.begin("a", "broker", LEASE, NOW)
    leases.beat(["a"], NOW)
    # When
    seen_before = leases.end("a", NOW, beat=0)
    seen_now = leases.end("a", NOW, beat=1)
    # Then
    assert seen_before is None
    assert seen_now == Seen("broker", NOW, NOW, NOW)
    assert leases.live() == {}


def test_a_dead_lease_is_removed_after_a_day(documents: Database[dict[str, Any]], leases: LeaseStore) -> None:
    indexes = documents["owners"].index_information().values()
    assert [
        (each["key"], each["expireAfterSeconds"]) for each in indexes if "expireAfterSeconds" in each
    ] == [([("ended_at", 1)], 86400)]


# ---------------------------------------------------------------------- our own


def test_an_owner_id_is_used_only_after_its_lease_is_written(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker = owners(leases)
    monkeypatch.setattr(leases, "begin", refused)
    # When
    with pytest.raises(Unavailable):
        broker.use()
    nothing = broker.mine()
    monkeypatch.undo()
    owner = broker.use()
    # Then
    assert nothing == []
    assert leases.live() == {owner: (0, LEASE)}
    assert broker.use() == owner


def refused(*_arguments: object) -> None:
    raise Unavailable("no primary")


def test_jobs_are_handed_out_for_two_thirds_of_a_lease_since_the_heartbeat_was_sent(
    leases: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker = a_broker(leases)
    beat = leases.beat

    def slow(owners: list[str], now: float) -> int:
        time.passes(9.0)  # the answer takes so long; the lease may have been raised at once
        return beat(owners, now)

    monkeypatch.setattr(leases, "beat", slow)
    # When
    broker.beat()
    # Then
    assert broker.sure
    time.passes(0.99)
    assert broker.sure
    time.passes(0.02)
    assert not broker.sure


def test_a_heartbeat_that_fails_makes_nothing_sure(
    leases: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker = a_broker(leases)
    monkeypatch.setattr(leases, "beat", refused)
    time.passes(10.1)
    # When
    with pytest.raises(Unavailable):
        broker.beat()
    # Then
    assert not broker.sure


def test_one_reply_that_is_held_costs_no_certainty_and_no_lease(
    leases: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker, beat, sure = a_broker(leases), leases.beat, list[bool]()
    beats(time, broker)

    def held_once(owners: list[str], now: float) -> int:
        answer = beat(owners, now)
        if not sure:
            time.passes(LEASE / 5)
            sure.append(broker.sure)
            raise Unclear("no reply")
        sure.append(broker.sure)
        return answer

    monkeypatch.setattr(leases, "beat", held_once)
    # When
    beats(time, broker)
    # Then
    assert sure == [True, True]
    assert broker.sure
    assert leases.live() == {broker.current: (3, LEASE)}


def test_whoever_seems_gone_is_asked_for_again_for_certain(leases: LeaseStore) -> None:
    leases.begin("a", "broker", LEASE, NOW)
    leases.begin("b", "broker", LEASE, NOW)
    leases.end("b", NOW)
    assert [leases.is_live(each) for each in ("a", "b", "unknown")] == [True, False, False]


@pytest.fixture
def elsewhere(documents: Database[dict[str, Any]], mongo: Any) -> Iterator[LeaseStore]:
    other = mongo[f"{documents.name}_b"]
    yield LeaseStore(other)
    mongo.drop_database(other.name)


def test_an_id_has_a_lease_in_every_database_and_is_lost_if_it_is_lost_in_one(
    leases: LeaseStore, elsewhere: LeaseStore, time: Time
) -> None:
    # Given
    lost: list[str] = []
    broker = owners(leases, "broker", {"b": elsewhere}, lost=lost.append)
    old = broker.use()
    beats(time, broker, count=2)
    both = (leases.live(), elsewhere.live())
    # When
    elsewhere.end(old, NOW)
    beats(time, broker)
    # Then
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
    leases: LeaseStore, elsewhere: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker = owners(leases, "broker", {"b": elsewhere})
    owner = broker.use()
    monkeypatch.setattr(leases, "beat", refused)
    # When
    time.passes(LEASE)
    with pytest.raises(Unavailable):
        broker.beat()
    # Then
    assert elsewhere.live() == {owner: (1, LEASE)}
    assert not broker.sure


def test_a_silent_broker_is_declared_dead_in_the_database_that_it_shares(
    documents: Database[dict[str, Any]], leases: LeaseStore, elsewhere: LeaseStore, time: Time
) -> None:
    # Given a watcher that never looks at the silent one's own database
    silent = owners(leases, "silent", {"b": elsewhere})
    its_own = LeaseStore(documents.client[f"{documents.name}_c"])
    watcher = owners(its_own, "watcher", {"b": elsewhere})
    old = silent.use()
    watcher.use()
    # When
    beats(time, watcher, silent)
    beats(time, watcher, count=7)
    # Then
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
    documents: Database[dict[str, Any]], leases: LeaseStore, time: Time
) -> None:
    # Given
    lost: list[str] = []
    broker = a_broker(leases, lost=lost.append)
    old = broker.current
    leases.end(old, NOW)
    # When
    beats(time, broker)
    # Then
    assert lost == [old]
    assert broker.current not in ("", old)
    assert leases.live().keys() == {broker.current}
    assert document(documents, old)["state"] == "dead"


def test_an_end_marks_our_lease_dead(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    broker.end()
    broker.end()
    assert leases.live() == {}
    assert broker.mine() == []


def test_an_id_is_ours_while_nobody_can_have_declared_it_dead(leases: LeaseStore, time: Time) -> None:
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
    assert len({broker.new_hold() for _ in range(100)}) == 100


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


def test_a_heartbeat_that_takes_long_holds_up_no_work(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker, held = a_broker(leases), Held()
    monkeypatch.setattr(leases, "beat", lambda owners, _now: held() or len(owners))
    beating = gevent.spawn(broker.beat)
    go_on()
    # When
    using = gevent.spawn(broker.use)
    using.join(30)  # shorter than what is held up waits
    # Then
    assert using.value == broker.current
    held.set()
    beating.get(timeout=60)


def test_a_heartbeat_under_way_at_the_end_leaves_no_lease_behind(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given
    broker, held, beat = a_broker(leases), Held(), leases.beat
    monkeypatch.setattr(leases, "beat", lambda owners, now: held() or beat(owners, now))
    beating = gevent.spawn(broker.beat)
    go_on()
    # When
    ending = gevent.spawn(broker.end)
    go_on()
    held.set()
    gevent.joinall([beating, ending], timeout=60.0, raise_error=True)
    # Then
    assert leases.live() == {}
    assert "declared dead" not in caplog.text


def test_after_the_end_no_id_is_begun(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    broker.end()
    with pytest.raises(Unavailable, match="the broker stops"):
        broker.use()
    broker.beat()
    assert leases.live() == {}


# -------------------------------------------------------------------- the others


def test_only_brokers_whose_counter_has_risen_share_the_work(leases: LeaseStore, time: Time) -> None:
    # Given a lease left by a broker that was killed, one of a broker that lives, and one who comes then
    a_broker(leases, "killed")
    alive, watcher = a_broker(leases, "alive"), a_broker(leases, "watcher")
    # When
    beats(time, watcher)
    at_first = watcher.others
    beats(time, alive, watcher)
    # Then
    assert (at_first, watcher.others) == (0, 1)
    beats(time, watcher, count=7)
    assert watcher.others == 0


def test_a_broker_that_is_silent_for_a_lease_is_declared_dead(
    documents: Database[dict[str, Any]], leases: LeaseStore, time: Time
) -> None:
    # Given
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    # When
    beats(time, watcher, count=5)
    just_before = document(documents, silent.current)["state"]
    beats(time, watcher)
    # Then
    assert just_before == "live"
    assert document(documents, silent.current)["state"] == "dead"
    assert watcher.live() == {watcher.current}


def test_a_broker_that_beats_late_but_in_time_stays_alive(leases: LeaseStore, time: Time) -> None:
    watcher, late = a_broker(leases, "watcher"), a_broker(leases, "late")
    for _ in range(5):
        beats(time, watcher, count=4)
        late.beat()
    assert late.current in leases.live()
    assert watcher.others == 1


def test_the_silent_brokers_own_lease_is_what_counts(leases: LeaseStore, time: Time) -> None:
    watcher, patient = a_broker(leases, "watcher"), a_broker(leases, "patient", lease=100.0)
    beats(time, watcher, count=20)
    assert patient.current in leases.live()


def test_time_in_which_the_watchers_own_heartbeats_failed_counts_against_nobody(
    leases: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    beats(time, watcher)
    # When: MongoDB is away for an hour, for both
    with monkeypatch.context() as away:
        away.setattr(leases, "beat", refused)
        for _ in range(1200):
            time.passes(BEAT)
            with pytest.raises(Unavailable):
                watcher.beat()
    beats(time, watcher)
    # Then
    assert silent.current in leases.live()
    beats(time, watcher, count=5)
    assert silent.current not in leases.live()


def test_a_broker_declared_dead_that_wakes_up_drops_what_it_had_and_goes_on_under_a_new_id(
    leases: LeaseStore, time: Time
) -> None:
    # Given
    lost: list[str] = []
    watcher, sleeper = a_broker(leases, "watcher"), a_broker(leases, "sleeper", lost=lost.append)
    old = sleeper.current
    beats(time, watcher, count=8)
    sure_asleep = sleeper.sure
    # When
    sleeper.beat()
    # Then
    assert not sure_asleep
    assert lost == [old]
    assert leases.live().keys() == {watcher.current, sleeper.current}
    assert sleeper.sure


def test_a_heartbeat_between_the_look_and_the_sentence_saves_a_broker(
    leases: LeaseStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    watcher, other = a_broker(leases, "watcher"), a_broker(leases, "other")
    end = leases.end

    def just_in_time(owner: str, now: float, *, beat: int | None, silent: bool) -> Seen | None:
        leases.beat([owner], now)
        return end(owner, now, beat=beat, silent=silent)

    monkeypatch.setattr(leases, "end", just_in_time)
    # When
    beats(time, watcher, count=8)
    # Then
    assert other.current in leases.live()


def test_a_broker_alone_with_its_store_ends_all_leases_but_its_own(leases: LeaseStore) -> None:
    former, alone = a_broker(leases, "former"), a_broker(leases, "alone")
    assert alone.end_others() == 1
    assert leases.live().keys() == {alone.current}
    assert former.current not in alone.live()


def test_the_servers_clock_is_measured_and_carried_on(mongo: Any) -> None:
    # Given
    clock = ServerClock()
    clock._ahead += 3600
    wrong = clock.now()
    # When
    clock.measure(mongo)
    # Then
    servers = mongo.admin.command("hello")["localTime"].replace(tzinfo=UTC).timestamp()
    assert abs(clock.now() - servers) < 1.0
    assert wrong - servers > 3000


def test_a_lost_reply_to_a_lease_leaves_the_broker_without_that_id(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker = owners(leases)
    begin = leases.begin

    def cut(*arguments: Any) -> None:
        begin(*arguments)
        raise Unclear("cut")

    monkeypatch.setattr(leases, "begin", cut)
    with pytest.raises(Unclear):
        broker.use()
    monkeypatch.undo()
    # When
    owner = broker.use()
    # Then
    assert len(leases.live()) == 2
    assert broker.mine() == [owner]
