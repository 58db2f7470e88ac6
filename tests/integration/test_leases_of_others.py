"""What becomes of the jobs of a broker whose lease has run out."""

from datetime import UTC
from typing import Any

import pytest
from pymongo.database import Database

from integration.lease_times import BEAT, TIME, LeaseTime, a_broker, beats, document, owners, refused
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import LeaseStore, Seen, ServerClock, Unclear


@pytest.fixture
def time() -> LeaseTime:
    return TIME


@pytest.fixture
def leases(documents: Database[dict[str, Any]]) -> LeaseStore:
    leases = LeaseStore(documents)
    leases.prepare()
    return leases


def test_only_brokers_whose_counter_has_risen_share_the_work(leases: LeaseStore, time: LeaseTime) -> None:
    # Given a lease left by a broker that was killed, one of a broker that lives, and one who comes then
    a_broker(leases, "killed")
    alive, watcher = a_broker(leases, "alive"), a_broker(leases, "watcher")
    beats(time, watcher)
    at_first = watcher.others
    beats(time, alive, watcher)
    assert (at_first, watcher.others) == (0, 1)
    beats(time, watcher, count=7)
    assert watcher.others == 0


def test_a_broker_is_at_work_only_while_it_works_on_jobs(leases: LeaseStore, time: LeaseTime) -> None:
    # Given one that is there, and has worked before
    done = 7.0
    watcher, other = a_broker(leases, "watcher"), a_broker(leases, "other", worked=lambda: done)
    beats(time, other, watcher, count=3)
    at_rest = watcher.others_at_work
    done += 1
    beats(time, other, watcher)
    at_work = watcher.others_at_work
    beats(time, other, watcher)
    assert (watcher.others, at_rest, at_work, watcher.others_at_work) == (1, False, True, False)


def test_a_broker_of_an_older_version_that_does_not_say_what_it_works_is_at_work(
    documents: Database[dict[str, Any]], leases: LeaseStore, time: LeaseTime
) -> None:
    watcher, other = a_broker(leases, "watcher"), a_broker(leases, "other")
    for _ in range(3):
        beats(time, other)
        documents["owners"].update_one({"_id": other.current}, {"$unset": {"worked": True}})
        watcher.beat()
    assert watcher.others_at_work


def test_a_broker_that_is_silent_for_a_lease_is_declared_dead(
    documents: Database[dict[str, Any]], leases: LeaseStore, time: LeaseTime
) -> None:
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    beats(time, watcher, count=5)
    just_before = document(documents, silent.current)["state"]
    beats(time, watcher)
    assert just_before == "live"
    assert document(documents, silent.current)["state"] == "dead"
    assert watcher.live() == {watcher.current}


def test_between_heartbeats_a_lease_is_looked_at_to_end_in_time(leases: LeaseStore, time: LeaseTime) -> None:
    # Given: a heartbeat that is seen at the next look, and not only at the watcher's next heartbeat
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    silent.beat()
    dead: list[str] = []
    watcher.on_dead(lambda seen: dead.append(seen.name))
    watcher.watch_others()
    beats(time, watcher, count=4)
    time.passes(BEAT - 0.01)
    watcher.watch_others()
    assert not dead
    time.passes(0.01)
    watcher.watch_others()
    assert dead == ["silent"]


def test_looks_count_no_time_in_which_the_watchers_own_heartbeats_fail(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    with monkeypatch.context() as away:
        away.setattr(leases, "beat", refused)
        for _ in range(100):
            time.passes(BEAT)
            watcher.watch_others()
    assert silent.current in leases.live()


def test_a_broker_that_beats_late_but_in_time_stays_alive(leases: LeaseStore, time: LeaseTime) -> None:
    watcher, late = a_broker(leases, "watcher"), a_broker(leases, "late")
    for _ in range(5):
        beats(time, watcher, count=4)
        late.beat()
    assert late.current in leases.live()
    assert watcher.others == 1


def test_the_silent_brokers_own_lease_is_what_counts(leases: LeaseStore, time: LeaseTime) -> None:
    watcher, patient = a_broker(leases, "watcher"), a_broker(leases, "patient", lease=100.0)
    beats(time, watcher, count=20)
    assert patient.current in leases.live()


def test_time_in_which_the_watchers_own_heartbeats_failed_counts_against_nobody(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, silent = a_broker(leases, "watcher"), a_broker(leases, "silent")
    beats(time, watcher, silent)
    beats(time, watcher)
    # When: MongoDB is away for an hour, for both
    with monkeypatch.context() as away:
        away.setattr(leases, "beat", refused)
        for _ in range(1200):
            time.passes(BEAT)
            with pytest.raises(UnavailableError):
                watcher.beat()
    beats(time, watcher)
    assert silent.current in leases.live()
    beats(time, watcher, count=5)
    assert silent.current not in leases.live()


def test_a_broker_declared_dead_goes_on_under_a_new_id(leases: LeaseStore, time: LeaseTime) -> None:
    lost: list[str] = []
    watcher, sleeper = a_broker(leases, "watcher"), a_broker(leases, "sleeper")
    sleeper.on_lost(lost.append)
    old = sleeper.current
    beats(time, watcher, count=8)
    sure_asleep = sleeper.sure
    sleeper.beat()
    assert not sure_asleep
    assert lost == [old]
    assert leases.live().keys() == {watcher.current, sleeper.current}
    assert sleeper.sure


def test_a_heartbeat_between_the_look_and_the_sentence_saves_a_broker(
    leases: LeaseStore, time: LeaseTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, other = a_broker(leases, "watcher"), a_broker(leases, "other")
    end = leases.end

    def just_in_time(owner: str, now: float, *, beat: int | None, silent: bool) -> Seen | None:
        leases.beat([owner], now)
        return end(owner, now, beat=beat, silent=silent)

    monkeypatch.setattr(leases, "end", just_in_time)
    beats(time, watcher, count=8)
    assert other.current in leases.live()


def test_a_broker_alone_with_its_store_ends_all_leases_but_its_own(leases: LeaseStore) -> None:
    former, alone = a_broker(leases, "former"), a_broker(leases, "alone")
    assert alone.end_others() == 1
    assert leases.live().keys() == {alone.current}
    assert former.current not in alone.live()


def test_the_servers_clock_is_measured_and_carried_on(mongo: Any) -> None:
    clock = ServerClock()
    clock.ahead += 3600
    wrong = clock.now()
    clock.measure(mongo)
    servers = mongo.admin.command("hello")["localTime"].replace(tzinfo=UTC).timestamp()
    assert abs(clock.now() - servers) < 1.0
    assert wrong - servers > 3000


def test_a_lost_reply_to_a_lease_costs_that_id(leases: LeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = owners(leases)
    begin = leases.begin

    def cut(*arguments: Any) -> None:
        begin(*arguments)
        raise Unclear("cut")

    monkeypatch.setattr(leases, "begin", cut)
    with pytest.raises(Unclear):
        broker.use()
    monkeypatch.undo()
    owner = broker.use()
    assert len(leases.live()) == 2
    assert broker.own_ids() == [owner]
