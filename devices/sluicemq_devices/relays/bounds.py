"""Limits of a FORWARDER: its work in one turn, and its memory."""

from __future__ import annotations

from typing import Final, NamedTuple


class TopicBounds(NamedTuple):
    """Limits of the index of topics, and of its cache."""

    listed: int = 64
    """Topics of a sorted list; a longer one is split, if it can be."""
    in_dictionary: int = 8192
    """Prefixes of the first level that are looked up in its dictionary; for more there is a table."""
    table_slots: int = 1 << 20
    """Slots of that table, a power of two; each takes 8 bytes."""
    chain_bytes: int = 2048
    """Bytes of the longest topic of a chain (topics that are prefixes of each other) that is cached."""
    learnt: int = 1_000_000
    """Cached entries: members of all audiences, and topics of all paths."""
    learnt_at_once: int = 2000
    """Nodes that are computed for one lot of messages: 4 ms."""


TOPIC_BOUNDS: Final = TopicBounds()


class Bounds(NamedTuple):
    """Limits of a FORWARDER's work in one turn, and of the memory of its topics."""

    turn: float = 0.004
    """Seconds of one turn of sending, where a lot takes several."""
    chosen: int = 32_000
    """Messages times subscribers that are matched at once."""
    bytes_of_one: int = 256 << 20
    """Bytes of memory that the topics of one subscriber may take."""
    bytes_of_all: int = 512 << 20
    """Bytes of memory that the topics of all subscribers together may take."""
    topics: TopicBounds = TOPIC_BOUNDS


BOUNDS: Final = Bounds()
