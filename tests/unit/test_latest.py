"""The last message of each topic, for subscribers that come late."""

from __future__ import annotations

from sluicemq_broker.doors.latest import Latest


def test_of_too_many_bytes_the_topics_published_longest_ago_are_forgotten_and_counted() -> None:
    latest = Latest(30)
    assert latest.note([b"a", b"b", b"c"], [bytes(10)] * 3) == 0
    assert latest.note([b"a"], [b"new"]) == 0
    assert latest.note([b"d"], [bytes(20)]) == 2
    assert latest.of(b"", ()) == [b"new", bytes(20)]


def test_what_others_of_its_prefixes_have_brought_is_not_sent_once_more() -> None:
    latest = Latest(1000)
    latest.note([b"price.eur", b"price.usd", b"news"], [b"1", b"2", b"3"])
    assert latest.of(b"price", [b"price.eur"]) == [b"2"]
