"""Jobs as plain sockets send them: one to three frames."""

from __future__ import annotations

from typing import Any, NamedTuple

from sluicemq.protocol import job_headers
from sluicemq.protocol.errors import BadFrames


class PlainJob(NamedTuple):
    """A message of a plain socket, taken apart: an empty queue means the device's own."""

    queue: str
    headers: dict[str, Any]
    payload: bytes


def split(frames: list[bytes]) -> PlainJob:
    """``[payload]``, ``[queue][payload]`` or ``[queue][headers][payload]``.

    Raises :class:`BadFrames` or :class:`BadHeaders`.
    """
    if not 1 <= len(frames) <= 3:
        raise BadFrames(f"a job has 1 to 3 frames ([queue] [headers] payload), this one has {len(frames)}")
    queue = frames[0] if len(frames) > 1 else b""
    headers = job_headers.decode(frames[1]) if len(frames) == 3 else {}
    return PlainJob(queue.decode("utf-8", "backslashreplace"), headers, frames[-1])
