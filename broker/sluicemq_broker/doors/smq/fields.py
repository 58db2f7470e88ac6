"""Fields of SMQ/1 messages: read with errors that say what was expected, and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq.protocol.rules import FARTHEST, LONGEST_ID
from sluicemq_broker.job import Failure
from sluicemq_broker.queue import FAN_OUT_OPTIONS, MOST_CHILDREN, Onward, Verdict
from sluicemq_broker.runtime import read_options

Fields = list[Any]

#: Jobs in one PUSH, receipts in one SETTLE, EXTEND or PROGRESS, at most.
MOST_ENTRIES: Final = 1000

_VERDICTS: Final = frozenset({wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.RELEASE})
_NO_HEADERS: Final[dict[str, Any]] = {}


def take(fields: Fields, *types: Any) -> Fields:
    """Return the first fields, checked to be of these types; a newer client may send more of them."""
    if len(fields) < len(types):
        raise BadFramesError(f"{len(fields)} fields after the number, expected {len(types)}")
    for at, (value, kind) in enumerate(zip(fields, types, strict=False)):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadFramesError(
                f"field {at + 1} after the number is a {type(value).__name__}, expected {_name(kind)}"
            )
        if isinstance(value, int) and value > wire.MAX_NUMBER:
            raise BadFramesError(
                f"field {at + 1} after the number is {value}, at most {wire.MAX_NUMBER} may be"
            )
    return fields[: len(types)]


def check_count(entries: Sequence[Any], verb: str, what: str, most: int = MOST_ENTRIES) -> None:
    """Raise BadFrames for more entries than a verb may have."""
    if len(entries) > most:
        raise BadFramesError(f"{verb} has at most {most} {what}, this one has {len(entries)}")


def check_id(job_id: str) -> str:
    """Return the id if a job may have it; raises BadFrames."""
    if not 1 <= len(job_id) <= LONGEST_ID:
        raise BadFramesError(f"an id has 1 to {LONGEST_ID} bytes, this one has {len(job_id)} characters")
    return job_id


def job_entry(entry: Any) -> tuple[str | None, bytes, dict[str, Any]]:
    """Return id, payload and headers of one job of a PUSH."""
    match entry:
        case [None | str() as job_id, bytes() as payload, (None | dict()) as headers]:
            return job_id, payload, headers or _NO_HEADERS
    raise BadFramesError("a job in a PUSH is [id or nil, payload as bin, headers or nil]")


def verdict_entry(entry: Any, *, in_full: bool = True) -> Verdict:
    """Return one verdict of a SETTLE; ``in_full``: also where a job goes on to, which may be long."""
    match entry:
        case [bytes() as receipt, wire.FORWARD | wire.FAN_OUT, _, _, _, *_] if not in_full:
            return Verdict(receipt, wire.ROLLBACK)
        case [
            bytes() as receipt,
            str() as kind,
            None | bytes() | str() as detail,
            None | int() | float() as delay,
        ]:
            if kind in _VERDICTS and not isinstance(delay, bool) and 0 <= (delay or 0) <= TEN_YEARS:
                return Verdict(receipt, kind, detail or b"", delay)
        case [bytes(), wire.ROLLBACK | wire.REJECT, _, _, None, dict() as failure]:
            return verdict_entry(entry[:4])._replace(failure=Failure.read(failure))
        case [bytes() as receipt, wire.FORWARD, None, None, onward]:
            return Verdict(receipt, wire.FORWARD, onward=(_onward(onward),))
        case [bytes() as receipt, wire.FAN_OUT, (None | bytes()) as result, None, list() as children, *more]:
            check_count(children, "a FANOUT", "children", MOST_CHILDREN)
            onward = tuple(map(_onward, children))
            return Verdict(receipt, wire.FAN_OUT, result or b"", onward=onward, **_fan_out_options(more))
    raise BadFramesError(
        "a verdict is [receipt, COMMIT|ROLLBACK|REJECT|RELEASE, detail or nil, delay in seconds or nil] "
        "or [receipt, FORWARD, nil, nil, [queue, payload or nil, headers or nil]] "
        "or [receipt, FANOUT, result or nil, nil, a list of these, options or nil]"
    )


def _fan_out_options(rest: Fields) -> dict[str, Any]:
    options = rest[0] if rest else None
    if not isinstance(options, dict | None):
        raise BadFramesError(f"the options of a FANOUT are a map of {', '.join(FAN_OUT_OPTIONS)}")
    return read_options(options or {}, FAN_OUT_OPTIONS, "a FANOUT")


def _onward(entry: Any) -> Onward:
    match entry:
        case [str() as queue, (None | bytes()) as payload, (None | dict()) as headers]:
            return Onward(queue, payload, headers or _NO_HEADERS)
    raise BadFramesError("the next queue of a job is [queue, payload as bin or nil, headers or nil]")


def progress_entry(entry: Any) -> tuple[bytes, float, float | None, str]:
    """Return receipt, done, total and note of one job of a PROGRESS."""
    match entry:
        case [
            bytes() as receipt,
            int() | float() as done,
            None | int() | float() as total,
            None | str() as note,
        ]:
            numbers = (done, 0 if total is None else total)
            if all(not isinstance(number, bool) and abs(number) <= FARTHEST for number in numbers):
                return receipt, done, total, (note or "")[: wire.MOST_NOTE]
    raise BadFramesError(
        "a job in a PROGRESS is [receipt, done, total or nil, note or nil], numbers up to 2**53"
    )


def seconds_to_wait(rest: Fields) -> float | None:
    """Return how many seconds to wait for a long order; None: until it is carried out."""
    wait = rest[0] if rest else None
    if wait is None:
        return None
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= TEN_YEARS:
        raise BadFramesError(f"{wait!r} is no number of seconds from 0 to ten years, nor nil")
    return float(wait)


def listed(problems: dict[int, SluiceError]) -> list[list[Any]]:
    """Return refusals by position: ``[[position, code, text, id of a DUPLICATE], ...]``."""
    return [[at, *error_fields(error)] for at, error in sorted(problems.items())]


def error_fields(error: SluiceError) -> list[str]:
    """Return an error's code and text, and its detail where it has one."""
    return [error.code, str(error), *([error.detail] if error.detail else [])]


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
