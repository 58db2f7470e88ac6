"""Messages of a stream."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """One message: its number, topic and payload, and when it was stored (Unix seconds)."""

    sequence: int
    topic: str
    payload: bytes
    time: float
    frames: tuple[bytes, ...]
    """All frames after the topic; the library's publishers send the payload only."""
