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
