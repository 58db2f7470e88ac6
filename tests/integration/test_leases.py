"""Owners and leases over the real MongoDB: who may hold jobs, and who is declared dead by whom."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from broker import owners as owners_module
from broker.mongo import ServerClock, Unclear
from broker.owners import Owners
from broker.store_leases import LeaseStore
from fakes import Held, go_on
from jobs import NOW
from sluicemq.errors import Unavailable

LEASE = 15.0
BEAT = LEASE / 5


class Time:
    """The monotonic clock of every broker in a test; it passes when told to."""

    def __init__(self) -> None:
        self.value = 1000.0

    def monotonic(self) -> float:
        return self.value

    def passes(self, seconds: float) -> None:
        self.value += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(owners_module, "time", time)
    return time


@pytest.fixture
def leases(documents: Database[dict[str, Any]]) -> LeaseStore:
    leases = LeaseStore(documents)
    leases.prepare()
    return leases


def a_broker(leases: LeaseStore, name: str = "broker", lease: float = LEASE) -> Owners:
    broker = Owners(leases, ServerClock(), name, lease)
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
    leases.beat(["a"])
    leases.begin("a", "broker", LEASE, NOW)
    assert leases.live() == {"a": (1, LEASE)}


def test_a_heartbeat_raises_the_counters_of_live_leases_only(leases: LeaseStore) -> None:
    # Given
    for owner in "abc":
        leases.begin(owner, "broker", LEASE, NOW)
    leases.end("b", NOW)
    # When
    live = leases.beat(["a", "b", "unknown"])
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
    leases.beat(["a"])
    # When
    seen_before = leases.end("a", NOW, beat=0)
    seen_now = leases.end("a", NOW, beat=1)
    # Then
    assert (seen_before, seen_now) == (False, True)
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
    broker = Owners(leases, ServerClock(), "broker", LEASE)
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

    def slow(owners: list[str]) -> int:
        time.passes(9.0)  # the answer takes so long; the lease may have been raised at once
        return beat(owners)

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


def test_a_broker_without_an_owner_is_not_sure(leases: LeaseStore) -> None:
    broker = Owners(leases, ServerClock(), "broker", LEASE)
    assert not broker.sure
    broker.use()
    assert broker.sure
    broker.end()
    assert not broker.sure


def test_a_retired_owner_is_kept_alive_until_it_is_closed_and_new_work_has_another(
    leases: LeaseStore, time: Time
) -> None:
    # Given
    broker = a_broker(leases)
    old = broker.current
    # When
    broker.retire(old)
    new = broker.use()
    beats(time, broker)
    while_retired = leases.live()
    broker.close(old)
    # Then
    assert new != old
    assert while_retired == {old: (1, LEASE), new: (1, LEASE)}
    assert leases.live().keys() == {new}
    assert broker.mine() == [new]


def test_retiring_an_owner_that_is_not_the_current_one_changes_nothing(leases: LeaseStore) -> None:
    # Given
    broker = a_broker(leases)
    old = broker.current
    broker.retire(old)
    # When
    broker.retire(old)
    broker.retire("")
    # Then
    assert broker.retired == {old}
    assert broker.current == ""


def test_an_owner_closed_between_two_heartbeats_is_not_taken_for_one_declared_dead(
    leases: LeaseStore, time: Time
) -> None:
    # Given
    broker, lost = a_broker(leases), list[str]()
    broker.lost = lost.append
    old = broker.current
    broker.retire(old)
    broker.use()
    # When
    broker.close(old)
    beats(time, broker)
    # Then
    assert lost == []


def test_our_lease_found_dead_is_told_and_a_new_id_is_taken(
    documents: Database[dict[str, Any]], leases: LeaseStore, time: Time
) -> None:
    # Given
    broker, lost = a_broker(leases), list[str]()
    broker.lost = lost.append
    old = broker.current
    leases.end(old, NOW)
    # When
    beats(time, broker)
    # Then
    assert lost == [old]
    assert broker.current not in ("", old)
    assert leases.live().keys() == {broker.current}
    assert document(documents, old)["state"] == "dead"


def test_of_two_ids_only_the_one_that_is_dead_is_lost(leases: LeaseStore, time: Time) -> None:
    # Given
    broker, lost = a_broker(leases), list[str]()
    broker.lost = lost.append
    old = broker.current
    broker.retire(old)
    new = broker.use()
    leases.end(old, NOW)
    # When
    beats(time, broker, count=2)
    # Then
    assert lost == [old]
    assert broker.mine() == [new]


def test_an_end_marks_all_our_leases_dead(leases: LeaseStore) -> None:
    broker = a_broker(leases)
    broker.retire(broker.current)
    broker.use()
    broker.end()
    broker.end()
    assert leases.live() == {}
    assert broker.mine() == []


def test_a_new_id_says_nothing_about_a_retired_one_that_has_not_been_confirmed(
    leases: LeaseStore, time: Time
) -> None:
    # Given an id retired, and no heartbeat for longer than a lease, so that another broker ends it
    broker, lost = a_broker(leases), list[str]()
    broker.lost = lost.append
    old = broker.current
    broker.retire(old)
    time.passes(LEASE + 1)
    leases.end(old, NOW)
    # When
    new = broker.use()
    # Then
    assert not broker.sure
    assert not broker.keeps(old)
    assert lost == [old]
    assert broker.current == new


def test_a_heartbeat_that_takes_long_holds_up_no_work(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    broker, held = a_broker(leases), Held()
    monkeypatch.setattr(leases, "beat", lambda owners: held() or len(owners))
    beating = gevent.spawn(broker.beat)
    go_on()
    # When
    using = gevent.spawn(broker.use)
    using.join(2.0)
    # Then
    assert using.value == broker.current
    held.set()
    beating.get(timeout=5.0)


def test_a_heartbeat_under_way_at_the_end_leaves_no_lease_behind(
    leases: LeaseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given
    broker, held, beat = a_broker(leases), Held(), leases.beat
    monkeypatch.setattr(leases, "beat", lambda owners: held() or beat(owners))
    beating = gevent.spawn(broker.beat)
    go_on()
    # When
    ending = gevent.spawn(broker.end)
    go_on()
    held.set()
    gevent.joinall([beating, ending], timeout=5.0, raise_error=True)
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
    watcher, sleeper = a_broker(leases, "watcher"), a_broker(leases, "sleeper")
    lost: list[str] = []
    sleeper.lost = lost.append
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

    def just_in_time(owner: str, now: float, *, beat: int | None = None) -> bool:
        leases.beat([owner])
        return end(owner, now, beat=beat)

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
    broker = Owners(leases, ServerClock(), "broker", LEASE)
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
