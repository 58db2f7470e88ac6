"""Subscriptions in MongoDB: one holder, a fence for each hold, a watermark; at several brokers."""

from typing import Any, cast

import gevent
import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import BadStreamError, HeldError, LeaseLostError
from sluicemq.protocol.packed import pack
from sluicemq.protocol.rows import plain
from sluicemq_broker.config import Config
from sluicemq_broker.context import Owners, Retry
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import Holder, LeaseStore, ServerClock, Subscription, SubscriptionStore
from sluicemq_broker.streams import Streams, StreamServices, Subscriptions, Wish, read_batch
from support.jobs import NOW
from support.waiting import TIMEOUT

STREAM, NAME = "prices", "sums"


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> SubscriptionStore:
    return SubscriptionStore(documents)


def holder(token: str, owner: str = "b1") -> Holder:
    return Holder(owner, token, f"worker {token}")


def hold(store: SubscriptionStore, token: str, kind: str = "update", **options: Any) -> Subscription:
    options = {"is_lost": lambda _holder: False, **options}
    return store.hold(STREAM, NAME, kind, holder(token), NOW, **options)


def watermark_of(store: SubscriptionStore) -> int | None:
    found = store.get(STREAM, NAME)
    return found.watermark if found else None


def gone(_holder: Holder) -> bool:
    return True


class TestHold:
    def test_the_first_makes_it_and_holds_it_from_the_beginning_on(self, store: SubscriptionStore) -> None:
        found = hold(store, "a")
        assert found.used_at
        made = Subscription(STREAM, NAME, 0, found.fence, "update", holder("a"), NOW, used_at=found.used_at)
        assert found == made

    def test_one_that_is_made_may_begin_elsewhere(self, store: SubscriptionStore) -> None:
        assert hold(store, "a", initial=70).watermark == 70
        store.release(STREAM, NAME)
        assert hold(store, "b", initial=90).watermark == 70

    @pytest.mark.parametrize("kind", ["update", "rebuild"])
    def test_while_somebody_holds_it_nobody_else_does(self, store: SubscriptionStore, kind: str) -> None:
        held = hold(store, "a")
        assert hold(store, "b", kind) == held

    def test_one_of_the_same_kind_takes_over_from_a_lost_holder(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.mark(STREAM, NAME, fence, 5, NOW)
        found = hold(store, "b", is_lost=gone, after=0)
        assert (found.holder, found.fence, found.watermark) == (holder("b"), fence + 1, 5)

    def test_one_of_another_kind_does_not_before_it_is_released(self, store: SubscriptionStore) -> None:
        hold(store, "a")
        assert hold(store, "b", "rebuild", is_lost=gone).holder == holder("a")
        assert store.release(STREAM, NAME)
        assert hold(store, "b", "rebuild").holder == holder("b")

    def test_when_the_holder_has_vanished_its_kind_keeps_the_lock(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        store.vanish(STREAM, NAME, held.fence)
        assert hold(store, "b", "rebuild").kind == "update"
        assert hold(store, "c").holder == holder("c")

    def test_the_end_of_an_earlier_hold_does_not_end_a_later_one(self, store: SubscriptionStore) -> None:
        early = hold(store, "a")
        late = hold(store, "b", is_lost=gone)
        store.vanish(STREAM, NAME, early.fence)
        assert not store.release(STREAM, NAME, early.fence)
        assert store.get(STREAM, NAME) == late

    def test_a_hold_whose_answer_was_lost_is_found_again(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        assert hold(store, "a", after=9) == held

    def test_a_hold_taken_from_nobody_may_begin_anywhere(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.mark(STREAM, NAME, fence, 8, NOW)
        store.release(STREAM, NAME, fence)
        assert hold(store, "b", "rebuild", after=0).watermark == 0

    def test_one_of_two_holds_it(self, store: SubscriptionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        # Given one that reads how it stands, and another that holds it before the first can
        read = SubscriptionStore.get
        meanwhile = [lambda: hold(store, "b")]

        def read_then_other(self: SubscriptionStore, stream: str, name: str) -> Subscription | None:
            found = read(self, stream, name)
            if meanwhile:
                meanwhile.pop()()
            return found

        hold(store, "z")
        store.release(STREAM, NAME)
        monkeypatch.setattr(SubscriptionStore, "get", read_then_other)
        found = hold(store, "a")
        assert found.holder == holder("b")


class TestMark:
    def test_it_rises_and_never_falls(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        for watermark in (3, 9, 5):
            assert store.mark(STREAM, NAME, fence, watermark, NOW + watermark)
        assert watermark_of(store) == 9

    def test_a_late_one_of_an_earlier_hold_is_refused(self, store: SubscriptionStore) -> None:
        early = hold(store, "a").fence
        hold(store, "b", is_lost=gone)
        assert not store.mark(STREAM, NAME, early, 100, NOW)
        assert watermark_of(store) == 0

    def test_a_late_one_of_a_hold_that_was_given_up_is_refused(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.release(STREAM, NAME)
        assert not store.mark(STREAM, NAME, fence, 100, NOW)

    def test_a_forgotten_one_is_refused_by_the_next_of_its_name(self, store: SubscriptionStore) -> None:
        early = hold(store, "a").fence
        store.release(STREAM, NAME)
        assert store.delete(STREAM, NAME)
        assert hold(store, "b").fence > early
        assert not store.mark(STREAM, NAME, early, 100, NOW)
        assert not store.release(STREAM, NAME, early)

    def test_one_of_a_vanished_holder_counts_until_another_is(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.vanish(STREAM, NAME, fence)
        assert store.mark(STREAM, NAME, fence, 4, NOW)


class TestSeek:
    def test_it_sets_the_watermark_both_ways_and_voids_late_marks(self, store: SubscriptionStore) -> None:
        assert store.seek(STREAM, NAME, 50).watermark == 50
        assert store.seek(STREAM, NAME, 10).watermark == 10
        fence = hold(store, "a").fence
        store.release(STREAM, NAME)
        store.seek(STREAM, NAME, 20)
        assert not store.mark(STREAM, NAME, fence, 30, NOW)

    def test_one_that_is_held_stays_as_it_is(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        assert store.seek(STREAM, NAME, 50) == held
        assert not store.delete(STREAM, NAME)

    def test_one_that_nobody_holds_can_be_removed(self, store: SubscriptionStore) -> None:
        store.seek(STREAM, NAME, 50)
        store.seek("other", NAME, 1)
        assert store.delete(STREAM, NAME)
        assert [subscription.stream for subscription in store.of()] == ["other"]
        assert store.of(STREAM) == []


class SubscriptionsRig:
    """The subscriptions of one broker, with a lease in MongoDB."""

    def __init__(self, documents: Any, owner: str) -> None:
        self.owner = owner
        self.leases = LeaseStore(documents)
        self.leases.begin(owner, owner, 15, NOW)
        self.context = StreamServices(ServerClock(), Counters(), Retry(0.001, 0.002))
        self.streams = Streams(Config.default(), self.context, lambda _name: documents)
        self.subscriptions = Subscriptions(
            self.streams, self.context, cast("Owners", self), lambda _stream: SubscriptionStore(documents)
        )

    def use(self) -> str:
        return self.owner

    def own_ids(self) -> list[str]:
        return [self.owner]

    def is_live(self, owner: str, _database: str | None = None) -> bool:
        return self.leases.is_live(owner)

    def publish(self, count: int) -> None:
        stored: list[Any] = []
        self.streams.for_publish("prices", caller=ANYBODY).publish(
            read_batch(pack(b"eur", b"1") * count, stored.append)
        )
        with gevent.Timeout(TIMEOUT):
            while not stored:
                gevent.sleep(0.001)

    def hold(self, kind: str = "update", name: str = "sums", **more: Any) -> Subscription:
        return self.subscriptions.hold(Wish("prices", name, kind, f"a worker at {self.owner}", **more))

    def row(self) -> dict[str, Any]:
        (row,) = self.subscriptions.listed("prices")
        return dict(plain(row))


@pytest.fixture
def brokers(documents: Database[dict[str, Any]]) -> tuple[SubscriptionsRig, SubscriptionsRig]:
    """Two, and the stream ``prices`` with ten messages."""
    one, other = SubscriptionsRig(documents, "b1"), SubscriptionsRig(documents, "b2")
    one.publish(10)
    return one, other


DAYS_31 = 31 * 86_400.0


def age(documents: Database[dict[str, Any]]) -> None:
    """Make all that is said of subscriptions a month older."""

    def earlier(field: str) -> list[dict[str, Any]]:
        return [{"$set": {field: {"$subtract": [f"${field}", int(DAYS_31 * 1000)]}}}]

    for field in ("used_at", "held_at", "marked_at"):
        documents["subscriptions"].update_many({field: {"$exists": True}}, earlier(field))


def test_messages_are_kept_for_a_subscription_as_long_as_somebody_uses_it(
    brokers: tuple[SubscriptionsRig, SubscriptionsRig], documents: Database[dict[str, Any]]
) -> None:
    def unread(broker: SubscriptionsRig) -> int | None:
        return broker.subscriptions.unread(broker.streams.open("prices"))

    # Given one that was held lately
    one, _ = brokers
    held = one.hold()
    one.subscriptions.release("prices", held.name, held.fence)
    assert unread(one) == 1
    # When nobody has used it for a month
    age(documents)
    third = SubscriptionsRig(documents, "b3")
    assert unread(third) is None
    # When somebody holds it for a month
    third.hold()
    age(documents)
    assert unread(SubscriptionsRig(documents, "b4")) == 1


def wait_until_it_has_vanished(broker: SubscriptionsRig) -> None:
    with gevent.Timeout(TIMEOUT):
        while broker.row()["holder"] is not None:
            gevent.sleep(0.001)


def test_when_its_holder_has_vanished_another_of_its_kind_goes_on_and_no_other(
    brokers: tuple[SubscriptionsRig, SubscriptionsRig],
) -> None:
    one, other = brokers
    held = one.hold()
    one.subscriptions.mark("prices", "sums", held.fence, 4)
    one.subscriptions.vanish(held)
    wait_until_it_has_vanished(other)
    with pytest.raises(HeldError, match="gone without releasing"):
        other.hold("rebuild")
    assert other.hold().watermark == 4


def test_the_next_does_not_wait_here(brokers: tuple[SubscriptionsRig, SubscriptionsRig]) -> None:
    one, _other = brokers
    held = one.hold()
    one.subscriptions.vanish(held)
    assert one.hold().fence > held.fence


def test_a_dead_brokers_hold_goes_on(brokers: tuple[SubscriptionsRig, SubscriptionsRig]) -> None:
    one, other = brokers
    held = one.hold()
    one.leases.end("b1", NOW)
    found = other.hold()
    assert found.fence > held.fence
    with pytest.raises(LeaseLostError):
        one.subscriptions.mark("prices", "sums", held.fence, 9)
    assert other.row()["watermark"] == 0


def test_each_is_shown_with_how_far_it_is_behind(brokers: tuple[SubscriptionsRig, SubscriptionsRig]) -> None:
    one, other = brokers
    held = one.hold()
    one.subscriptions.mark("prices", "sums", held.fence, 7)
    row = other.row()
    assert row["behind"] == 3
    assert row["seconds_behind"] >= 0
    assert (row["kind"], row["holder"]) == ("update", "a worker at b1")
    one.subscriptions.mark("prices", "sums", held.fence, 10)
    assert (other.row()["behind"], other.row()["seconds_behind"]) == (0, 0.0)


def test_what_the_slowest_has_not_read_is_known(brokers: tuple[SubscriptionsRig, SubscriptionsRig]) -> None:
    one, other = brokers
    stream = other.streams.get("prices")
    assert other.subscriptions.unread(stream) is None
    for name, watermark in (("sums", 7), ("mails", 3)):
        one.subscriptions.seek("prices", name, watermark)
    assert other.subscriptions.unread(stream) == 4


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        (Wish("nope", "sums", "update", "w"), "no stream 'nope'"),
        (Wish("prices", "a b", "update", "w"), "no name of a subscription"),
        (Wish("prices", "sums", "", "w"), "no kind"),
        (Wish("prices", "sums", "x" * 65, "w"), "no kind"),
        (Wish("prices", "sums", "a\nb", "w"), "no kind"),
    ],
)
def test_what_can_t_be_held_is_named(
    brokers: tuple[SubscriptionsRig, SubscriptionsRig], wish: Wish, what: str
) -> None:
    with pytest.raises(BadStreamError, match=what):
        brokers[0].subscriptions.hold(wish)
