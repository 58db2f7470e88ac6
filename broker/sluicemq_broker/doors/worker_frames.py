"""Frames of plain workers: those of the jobs they receive, and of the verdicts they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from sluicemq.protocol import job_headers, wire
from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq.protocol.json_values import dumps, text_of
from sluicemq.protocol.options import OPTIONS
from sluicemq_broker.doors.frames import read_name
from sluicemq_broker.job import ChildEnd, Job
from sluicemq_broker.queue import (
    FAN_OUT_OPTIONS,
    MOST_CHILDREN,
    MOST_HEADERS,
    PLAIN,
    Onward,
    Verdict,
    read_verdict,
)
from sluicemq_broker.runtime import read_options
from sluicemq_broker.security import Caller

#: Compared one by one: a result may have megabytes, and hashing it would read all of them.
_WORDS: Final = tuple(PLAIN)


def body(job: Job, *, full: bool) -> list[bytes]:
    """Return the frames of a job; ``full``: with its id and headers.

    The last frame of a job that is joined is JSON of how its children have ended.
    """
    frames = [job.id.encode(), _headers(job), job.payload] if full else [job.payload]
    return frames if job.joined is None else [*frames, _children(job.joined)]


def _children(ends: Iterable[ChildEnd]) -> bytes:
    # By msgspec, as 1 MiB of results takes json 20 ms of the hub.
    return msgspec.json.encode(
        [
            {"id": end.id, "error": end.error} if end.error else {"id": end.id, "result": text_of(end.result)}
            for end in ends
        ]
    )


def _headers(job: Job) -> bytes:
    """Return the headers of a full envelope."""
    known = {"attempt": job.attempts, "priority": job.priority, "headers": job.headers or {}}
    return dumps(known, ascii=True).encode()


def commit_frames(frames: list[bytes], knows: Callable[[bytes], bool]) -> Verdict:
    """Read ``[verdict][receipt][reason or result][delay]``, or ``[FORWARD][receipt]`` and the next queue.

    ``knows(receipt)``: whether a delivery has it; else the queues behind it are not read. Raises
    :class:`BadFrames`, and :class:`BadHeaders` for the headers of a FORWARD.
    """
    if len(frames) > 1 and (going_on := _going_on(frames[0])):
        receipt = frames[1]
        return going_on(receipt, frames[2:]) if knows(receipt) else Verdict(receipt, wire.ROLLBACK)
    if not 2 <= len(frames) <= 4:
        raise BadFramesError(
            f"a verdict has 2 to 4 frames ([verdict] [receipt] [reason] [delay]), this one has {len(frames)}"
        )
    return Verdict(frames[1], read_verdict(frames[0]), b"".join(frames[2:3]), _delay(frames[3:]))


def answer(receipt: bytes, frames: list[bytes]) -> Verdict:
    """Read a REP worker's answer: ``[result]``, or a verdict first; raises as :func:`commit_frames`."""
    if frames and (going_on := _going_on(frames[0])):
        return going_on(receipt, frames[1:])
    if len(frames) == 1 and frames[0] not in _WORDS:
        return Verdict(receipt, wire.COMMIT, frames[0])
    if not 1 <= len(frames) <= 3:
        raise BadFramesError(f"an answer has 1 to 3 frames, this one has {len(frames)}")
    return Verdict(receipt, read_verdict(frames[0]), b"".join(frames[1:2]), _delay(frames[2:]))


def charge_jobs(caller: Caller, verdicts: Iterable[Verdict]) -> None:
    """Count the jobs that verdicts make by FORWARD and FANOUT: they are as if the caller pushed them.

    The connection is read on: verdicts behind these must come in time, or their jobs are delivered again. A
    payload that a job inherits has no bytes here.
    """
    rates = caller.principal.rates
    if rates is not None:
        made = [onward for verdict in verdicts for onward in verdict.onward]
        rates.spend(len(made), sum(len(onward.payload or b"") for onward in made))


def unreadable(receipt: bytes, error: SluiceError) -> Verdict:
    """Return the verdict for an unreadable one: the job is rolled back, with the reason in its history."""
    return Verdict(receipt, wire.ROLLBACK, f"bad verdict: {error}")


def _fan_out(receipt: bytes, frames: list[bytes]) -> Verdict:
    """Read the children of a job: ``[queue][payload][headers]`` of each; the headers are read later.

    One frame more is the options of all.
    """
    options: dict[str, Any] = {}
    if len(frames) % 3 == 1:
        options = read_options(job_headers.decode(frames.pop()), FAN_OUT_OPTIONS, "a FANOUT")
    if not frames or len(frames) % 3:
        raise BadFramesError(
            f"FANOUT has [queue] [payload] [headers] of each child, not {len(frames)} frames"
        )
    if len(frames) > 3 * MOST_CHILDREN:
        raise BadFramesError(f"a fan-out has 1 to {MOST_CHILDREN} children, not {len(frames) // 3}")
    if (size := sum(map(len, frames[2::3]))) > MOST_HEADERS:
        raise BadFramesError(
            f"the headers of all children have {size} bytes, at most {MOST_HEADERS} are taken"
        )
    children = zip(frames[::3], frames[1::3], frames[2::3], strict=True)
    onward = (Onward(read_name(queue), payload, {}, headers) for queue, payload, headers in children)
    return Verdict(receipt, wire.FAN_OUT, onward=tuple(onward), **options)


def _forward(receipt: bytes, frames: list[bytes]) -> Verdict:
    """Read the next queue of a job: ``[queue]``, ``[queue][payload]`` or ``[queue][payload][headers]``."""
    if not 1 <= len(frames) <= 3:
        raise BadFramesError(f"FORWARD has [queue] [payload] [headers] behind it, not {len(frames)} frames")
    payload = frames[1] if len(frames) > 1 else None
    headers = job_headers.decode(frames[2]) if len(frames) > 2 else {}
    return Verdict(receipt, wire.FORWARD, onward=(Onward(read_name(frames[0]), payload, headers),))


_GOING_ON: Final[Mapping[bytes, Callable[[bytes, list[bytes]], Verdict]]] = {
    wire.FORWARD.encode(): _forward,
    wire.FAN_OUT.encode(): _fan_out,
}


def _going_on(word: bytes) -> Callable[[bytes, list[bytes]], Verdict] | None:
    """Return what reads the frames behind a verdict that names queues; a long result is not looked up."""
    return _GOING_ON.get(word) if len(word) <= len(wire.FORWARD) else None


def _delay(frames: list[bytes]) -> float | None:
    if not frames:
        return None
    try:
        return float(OPTIONS["delay"].rule.of_text(frames[0].decode("ascii")))
    except ValueError as error:
        raise BadFramesError(
            f"delay {frames[0][:32]!r} is not a number of seconds from 0 to ten years, nor as 1h30m"
        ) from error
