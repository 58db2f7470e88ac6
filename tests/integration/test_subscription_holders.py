"""Who holds a subscription, at brokers that share a MongoDB: until it is released, or its holder is lost."""

from __future__ import annotations

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
from sluicemq_broker.store import LeaseStore, ServerClock, Subscription, SubscriptionStore
from sluicemq_broker.streams import Streams, StreamServices, Subscriptions, Wish, read_batch
from support.jobs import NOW
from support.waiting import TIMEOUT


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


def test_at_the_same_broker_the_next_need_not_wait_for_the_statement(
    brokers: tuple[SubscriptionsRig, SubscriptionsRig],
) -> None:
    one, _other = brokers
    held = one.hold()
    one.subscriptions.vanish(held)
    assert one.hold().fence > held.fence


def test_when_the_lease_of_its_holders_broker_has_ended_its_kind_goes_on(
    brokers: tuple[SubscriptionsRig, SubscriptionsRig],
) -> None:
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
