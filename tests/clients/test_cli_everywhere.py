"""Brokers that a command asks: names that stand for several of them are looked up, for a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sluicemq.cli.everywhere import brokers_at
from sluicemq.transport.access import Access
from sluicemq.transport.names import Address

LONG = 30.0


def test_a_name_stands_for_the_brokers_at_all_of_its_addresses() -> None:
    def resolve(host: str) -> Sequence[Address]:
        if host == "b.example":
            raise OSError("no such name")
        return [Address("10.0.0.1", ipv6=False), Address("[fd00::1]", ipv6=True)]

    given = (
        "tcp://a:1",
        "dns+tcp://a.example:2",
        "dns+tcp://b.example:3",
        "dns+tcp://10.0.0.9:0;a.example:4",
    )
    assert brokers_at(Access(given, resolve=resolve), LONG) == [
        "tcp://a:1",
        "tcp://10.0.0.1:2",
        "tcp://[fd00::1]:2",
        "dns+tcp://b.example:3",
        "tcp://10.0.0.9:0;10.0.0.1:4",
    ]


def test_no_answer_of_dns_holds_a_command_up() -> None:
    answers = threading.Event()

    def resolve(_host: str) -> Sequence[Address]:
        answers.wait()
        return []

    found = brokers_at(Access(("dns+tcp://a.example:1", "tcp://b:2"), resolve=resolve), 0.1)
    # Then it goes on while the lookup still waits
    assert found == ["dns+tcp://a.example:1", "tcp://b:2"]
    assert not answers.is_set()
    answers.set()
