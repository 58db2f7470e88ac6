"""The last message of each topic, for subscribers that come late."""

from __future__ import annotations

from sluicemq_broker.parts.streams.last_values import LastValues


def test_of_too_many_bytes_the_topics_published_longest_ago_are_forgotten_and_counted() -> None:
    latest = LastValues(30)
    assert latest.note([b"a", b"b", b"c"], [bytes(10)] * 3) == 0
    assert latest.note([b"a"], [b"new"]) == 0
    assert latest.note([b"d"], [bytes(20)]) == 2
    assert [each for each in latest.of(b"", {b""}) if each] == [b"new", bytes(20)]


def test_what_others_of_its_prefixes_have_brought_is_not_sent_once_more() -> None:
    latest = LastValues(1000)
    latest.note([b"price.eur", b"price.usd", b"news"], [b"1", b"2", b"3"])
    assert list(latest.of(b"price", {b"price", b"price.eur"})) == [None, b"2"]
    assert list(latest.of(b"price.eur", {b"", b"price.eur"})) == []


def test_topics_that_come_and_go_are_found_in_their_order_and_once() -> None:
    latest = LastValues(3000)
    for round_ in range(3):
        topics = [b"%d.%04d" % (round_, at) for at in range(2000)]
        latest.note(topics, [b"%d" % at for at in range(2000)])
    latest.note([b"2.1999", b"0.0001"], [b"again", b"back"])

    found = [each for each in latest.of(b"", {b""}) if each is not None]

    assert found[0] == b"back"
    assert found[-1] == b"again"
    assert len(found) == len(latest.messages)
    assert len(latest.in_order) < 3 * 2000
