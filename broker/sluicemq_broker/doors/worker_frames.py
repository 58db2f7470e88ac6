"""What plain workers receive, and what they answer: frames of jobs, and verdicts made of frames."""

from __future__ import annotations

import json
from typing import Final

from sluicemq import wire
from sluicemq.errors import BadFrames, SluiceError
from sluicemq.options import TEN_YEARS
from sluicemq_broker.job import Job
from sluicemq_broker.queue import PLAIN, Onward, Verdict, read_verdict

#: Compared one by one: a result may have megabytes, and its hash would be of all of them.
_WORDS: Final = tuple(PLAIN)
_FORWARD: Final = wire.FORWARD.encode()


def body(job: Job, *, full: bool) -> list[bytes]:
    """What a worker gets of a job; ``full``: with its id and headers."""
    return [job.id.encode(), _headers(job), job.payload] if full else [job.payload]


def _headers(job: Job) -> bytes:
    """The headers of a full envelope: what a worker may want to know."""
    known = {"attempt": job.attempts, "priority": job.priority, "headers": job.headers or {}}
    return json.dumps(known, default=lambda value: value.decode("utf-8", "replace")).encode()


def commit_frames(frames: list[bytes]) -> Verdict:
    """``[verdict][receipt][reason or result][delay]``, or ``[FORWARD][receipt]`` and where to.

    Raises :class:`BadFrames`, and what is wrong with the headers of a FORWARD.
    """
    if frames[0] == _FORWARD and len(frames) > 1:
        return _forward(frames[1], frames[2:])
    if not 2 <= len(frames) <= 4:
        raise BadFrames(
            f"a verdict has 2 to 4 frames ([verdict] [receipt] [reason] [delay]), this one has {len(frames)}"
        )
    return Verdict(frames[1], read_verdict(frames[0]), b"".join(frames[2:3]), _delay(frames[3:]))


def answer(receipt: bytes, frames: list[bytes]) -> Verdict:
    """A REP worker's answer: ``[result]``, or a verb first; raises as :func:`commit_frames`."""
    if frames and frames[0] == _FORWARD:
        return _forward(receipt, frames[1:])
    if len(frames) == 1 and frames[0] not in _WORDS:
        return Verdict(receipt, wire.COMMIT, frames[0])
    if not 1 <= len(frames) <= 3:
        raise BadFrames(f"an answer has 1 to 3 frames, this one has {len(frames)}")
    return Verdict(receipt, read_verdict(frames[0]), b"".join(frames[1:2]), _delay(frames[2:]))


def unreadable(receipt: bytes, error: SluiceError) -> Verdict:
    """What can't be read is no commit: the job is rolled back, with the reason in its history."""
    return Verdict(receipt, wire.ROLLBACK, f"bad verdict: {error}")


def _forward(receipt: bytes, frames: list[bytes]) -> Verdict:
    """Where a job goes on: ``[queue]``, ``[queue][payload]`` or ``[queue][payload][headers]``."""
    if not 1 <= len(frames) <= 3:
        raise BadFrames(f"FORWARD has [queue] [payload] [headers] behind it, not {len(frames)} frames")
    queue = frames[0].decode("utf-8", "backslashreplace")
    payload = frames[1] if len(frames) > 1 else None
    headers = wire.decode_headers(frames[2]) if len(frames) > 2 else {}
    return Verdict(receipt, wire.FORWARD, onward=(Onward(queue, payload, headers),))


def _delay(frames: list[bytes]) -> float | None:
    if not frames:
        return None
    try:
        delay = float(frames[0])
    except ValueError:
        delay = -1.0
    if not 0 <= delay <= TEN_YEARS:
        raise BadFrames(f"delay {frames[0][:32]!r} is not a number of seconds from 0 to ten years")
    return delay
