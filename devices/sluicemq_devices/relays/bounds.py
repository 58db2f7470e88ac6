"""How much a FORWARDER does at once, and how much it keeps."""

from __future__ import annotations

from typing import Final, NamedTuple


class TopicBounds(NamedTuple):
    """How topics are kept, and how much is learnt of them."""

    listed: int = 64
    """Topics of a sorted list; with more it is parted, if it can be."""
    in_dictionary: int = 8192
    """Beginnings of the first level that are looked up in its dictionary; for more there is a table."""
    table_slots: int = 1 << 20
    """Slots of that table, a power of two; each takes 8 bytes."""
    chain_bytes: int = 2048
    """Of topics that begin each other and are learnt as a whole: bytes of the longest."""
    learnt: int = 1_000_000
    """Members of all audiences, and topics of all ways, that are remembered."""
    learnt_at_once: int = 2000
    """Nodes that are learnt for one lot of messages: 4 ms."""


TOPIC_BOUNDS: Final = TopicBounds()


class Bounds(NamedTuple):
    """How long a FORWARDER works at once, and how much memory its topics may take."""

    turn: float = 0.004
    """Seconds; with more, what is sent in a turn of the hub."""
    chosen: int = 32_000
    """Of messages times subscribers, of which each may want each: what is chosen from at once."""
    bytes_of_one: int = 256 << 20
    """Bytes of memory that the topics of one subscriber may take."""
    bytes_of_all: int = 512 << 20
    """The same for those of all subscribers together."""
    topics: TopicBounds = TOPIC_BOUNDS


BOUNDS: Final = Bounds()
