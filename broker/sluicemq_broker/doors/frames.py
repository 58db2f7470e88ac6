"""Frames of plain sockets: probes, return envelopes, and jobs in one to three frames."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sluicemq.protocol import job_headers
from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.readable import start_of
from sluicemq_broker.runtime import Count, Counters

#: Times ``max_job_bytes`` that a frame may have. A longer one cuts the connection, with all else in its pipe;
#: the limit itself is checked when a message is read, so that the sender gets an error.
FRAME_FACTOR: Final = 2
#: The first message of a socket with ``ZMQ_PROBE_ROUTER``.
PROBE: Final = [b""]


class PlainJob(NamedTuple):
    """A job as a plain socket sends it; an empty queue is the device's own."""

    queue: str
    headers: dict[str, Any]
    payload: bytes


def split(frames: list[bytes]) -> PlainJob:
    """Read ``[payload]``, ``[queue][payload]`` or ``[queue][headers][payload]``.

    Raises :class:`BadFrames` or :class:`BadHeaders`.
    """
    if not 1 <= len(frames) <= 3:
        raise BadFramesError(
            f"a job has 1 to 3 frames ([queue] [headers] payload), this one has {len(frames)}"
        )
    queue = frames[0] if len(frames) > 1 else b""
    headers = job_headers.decode(frames[1]) if len(frames) == 3 else {}
    return PlainJob(read_name(queue), headers, frames[-1])


def read_name(frame: bytes) -> str:
    """Return the name that a frame has; one that is too long is cut to a length that is refused."""
    return start_of(frame, 2 * LONGEST_NAME)


def split_envelope(frames: list[bytes], content: str) -> tuple[list[bytes], list[bytes]]:
    """Return the return envelope, up to the first empty frame, and the ``content`` behind it."""
    try:
        end = frames.index(b"", 1) + 1
    except ValueError:
        raise BadFramesError(
            f"no empty frame after the envelope: a DEALER sends one before the {content}"
        ) from None
    return frames[:end], frames[end:]


def without_probes(messages: list[list[bytes]], counters: Counters) -> list[list[bytes]]:
    """Return the messages that have anything behind their envelope; the others are probes.

    A probe is one empty frame. If it was answered, a REQ client would take that answer for the one to its
    first request, the answer to its first request for the second one's, and so on.
    """
    if all(frames[-1] for frames in messages):
        return messages
    requests = [frames for frames in messages if frames[-1] or frames.index(b"", 1) < len(frames) - 1]
    counters.add(Count.PROBES, len(messages) - len(requests))
    return requests
