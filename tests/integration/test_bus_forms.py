"""What carries events between brokers: in one process, over MongoDB, over Redis; each keeps one contract."""

from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo.database import Database
from redis import Redis

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.bus import Feed, LocalTransport, RedisTransport, Transport
from sluicemq_broker.store import EventRing
from support.redis_server import RedisServer
from support.waiting import wait_until

HELLO = ["hello  0"]
#: Makes a broker's way to the others.
Form = Callable[[], Transport]


@pytest.fixture(params=["local", "mongodb", "redis"])
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    place = f"test_{token_hex(6)}"
    match request.param:
        case "local":
            yield lambda: LocalTransport(place)
        case "mongodb":
            documents = request.getfixturevalue("documents")
            yield lambda: EventRing(documents)
            documents["bus"].drop()
        case _:
            url = request.getfixturevalue("redis_url")
            yield lambda: RedisTransport(url, place)


def hear(feed: Feed, count: int) -> list[str]:
    """The next lines that come, until they are so many."""
    found: list[str] = []

    def enough() -> bool:
        found.extend(feed.next())
        return len(found) >= count

    wait_until(enough, what=f"{count} lines")
    return found


def test_what_one_sends_all_others_hear_in_its_order_and_itself_does_not(form: Form) -> None:
    one, two, three = form(), form(), form()
    with one.listen([]) as at_one, two.listen([]) as at_two, three.listen([]) as at_three:
        one.send(["ready mail 1", "stream prices 12"])
        one.send(["ready mail 2"])
        two.send(["ready mail 3"])
        assert hear(at_one, 1) == ["ready mail 3"]
        assert hear(at_two, 3) == ["ready mail 1", "stream prices 12", "ready mail 2"]
        assert hear(at_three, 4) == ["ready mail 1", "stream prices 12", "ready mail 2", "ready mail 3"]


def test_who_comes_is_heard_and_hears_nothing_of_what_was_before(form: Form) -> None:
    one, two = form(), form()
    with one.listen([]) as at_one:
        one.send(["ready mail 1"])
        with two.listen(HELLO) as at_two:
            one.send(["ready mail 2"])
            assert hear(at_two, 1) == ["ready mail 2"]
        assert hear(at_one, 1) == HELLO


def test_what_is_sent_while_nobody_listens_is_heard_by_nobody(form: Form) -> None:
    one, late = form(), form()
    one.send(["ready mail 1"])
    with late.listen([]) as feed:
        one.send(["ready mail 2"])
        assert hear(feed, 1) == ["ready mail 2"]


def test_nothing_comes_to_who_waits_in_vain(form: Form) -> None:
    with form().listen([]) as feed:
        assert not feed.next()


@pytest.fixture
def ring(documents: Database[dict[str, Any]]) -> Iterator[Callable[[], EventRing]]:
    yield lambda: EventRing(documents)
    documents["bus"].drop()


def test_one_overtaken_by_the_ring_hears_that_it_missed_something(ring: Callable[[], EventRing]) -> None:
    slow, fast = ring(), ring()
    with slow.listen([]) as feed:
        for number in range(400):  # of 4,000 bytes each: more than the ring holds, and more than a reply has
            fast.send([f"ready {'a' * 4000} {number}"])
        with pytest.raises(UnavailableError):
            hear(feed, 400)
    with slow.listen([]) as feed:
        fast.send(["ready mail 1"])
        assert hear(feed, 1) == ["ready mail 1"]


def test_a_ring_that_somebody_drops_is_made_anew(
    ring: Callable[[], EventRing], documents: Database[dict[str, Any]]
) -> None:
    one, two = ring(), ring()
    with one.listen([]) as feed:
        documents["bus"].drop()
        with pytest.raises(UnavailableError):
            hear(feed, 1)
    with one.listen([]) as feed, two.listen(HELLO):
        assert hear(feed, 1) == HELLO


def test_what_is_no_ring_is_told(ring: Callable[[], EventRing], documents: Database[dict[str, Any]]) -> None:
    documents.create_collection("bus")
    with pytest.raises(UnavailableError, match="capped"), ring().listen([]):
        pass


def test_the_ring_stays_small(ring: Callable[[], EventRing], documents: Database[dict[str, Any]]) -> None:
    with ring().listen([]):
        stats = documents.command("collStats", "bus")
    assert stats["capped"]
    assert stats["maxSize"] == 1024 * 1024


def test_a_connection_to_redis_that_was_made_anew_may_have_missed_something(redis_url: str) -> None:
    place = f"test_{token_hex(6)}"
    one, two = RedisTransport(redis_url, place), RedisTransport(redis_url, place)
    with one.listen([]) as feed:
        with Redis.from_url(redis_url) as redis:
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        with pytest.raises(UnavailableError):
            hear(feed, 1)
    with one.listen([]) as feed, two.listen(HELLO):
        assert hear(feed, 1) == HELLO


def test_a_redis_that_is_gone_is_told_of_until_it_is_back() -> None:
    with RedisServer() as server:
        transport, other = RedisTransport(server.url, "a"), RedisTransport(server.url, "a")
        server.kill()
        with pytest.raises(UnavailableError, match="Redis"), transport.listen([]):
            pass
        with pytest.raises(UnavailableError, match="Redis"):
            transport.send(["ready mail 1"])
        server.start()
        with transport.listen([]) as feed, other.listen(HELLO):
            assert hear(feed, 1) == HELLO
