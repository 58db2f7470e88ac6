"""What stands in the arrays of SMQ/1: read with errors that say what was expected, and written."""

from __future__ import annotations

from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.errors import BadFrames, SluiceError
from sluicemq.protocol.rules import LONGEST_ID
from sluicemq_broker.queue import Onward, Verdict

Fields = list[Any]

#: Seconds, ten years: no delay and no extension is longer.
LONGEST_DELAY: Final = TEN_YEARS

_VERDICTS: Final = frozenset({wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.RELEASE})
#: Whole numbers up to here are the same in every language.
_FARTHEST: Final = 2**53
_NO_HEADERS: Final[dict[str, Any]] = {}


def take(fields: Fields, *types: Any) -> Fields:
    """The fields, if they are of these types; what a newer client adds at the end is ignored."""
    if len(fields) < len(types):
        raise BadFrames(f"{len(fields)} fields after the number, expected {len(types)}")
    for at, (value, kind) in enumerate(zip(fields, types, strict=False)):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadFrames(
                f"field {at + 1} after the number is a {type(value).__name__}, expected {_name(kind)}"
            )
        if isinstance(value, int) and value > wire.MAX_NUMBER:
            raise BadFrames(f"field {at + 1} after the number is {value}, at most {wire.MAX_NUMBER} may be")
    return fields[: len(types)]


def check_id(job_id: str) -> str:
    """The id, if a job may have it: what asks for it is kept until the answer."""
    if not 1 <= len(job_id) <= LONGEST_ID:
        raise BadFrames(f"an id has 1 to {LONGEST_ID} bytes, this one has {len(job_id)} characters")
    return job_id


def job_entry(entry: Any) -> tuple[str | None, bytes, dict[str, Any]]:
    """Id, payload and headers of one job of a PUSH."""
    match entry:
        case [None | str() as job_id, bytes() as payload, (None | dict()) as headers]:
            return job_id, payload, headers or _NO_HEADERS
    raise BadFrames("a job in a PUSH is [id or nil, payload as bin, headers or nil]")


def verdict_entry(entry: Any) -> Verdict:
    """One verdict of a SETTLE."""
    match entry:
        case [
            bytes() as receipt,
            str() as kind,
            None | bytes() | str() as detail,
            None | int() | float() as delay,
        ]:
            if kind in _VERDICTS and not isinstance(delay, bool) and 0 <= (delay or 0) <= LONGEST_DELAY:
                return Verdict(receipt, kind, detail or b"", delay)
        case [bytes() as receipt, wire.FORWARD, None, None, onward]:
            return Verdict(receipt, wire.FORWARD, onward=(_onward(onward),))
        case [bytes() as receipt, wire.FAN_OUT, (None | bytes()) as result, None, list() as children]:
            return Verdict(receipt, wire.FAN_OUT, result or b"", onward=tuple(map(_onward, children)))
    raise BadFrames(
        "a verdict is [receipt, COMMIT|ROLLBACK|REJECT|RELEASE, detail or nil, delay in seconds or nil] "
        "or [receipt, FORWARD, nil, nil, [queue, payload or nil, headers or nil]] "
        "or [receipt, FANOUT, result or nil, nil, a list of these]"
    )


def _onward(entry: Any) -> Onward:
    match entry:
        case [str() as queue, (None | bytes()) as payload, (None | dict()) as headers]:
            return Onward(queue, payload, headers or _NO_HEADERS)
    raise BadFrames("where a job goes on is [queue, payload as bin or nil, headers or nil]")


def progress_entry(entry: Any) -> tuple[bytes, float, float | None, str]:
    """Receipt, done, total and note of one job of a PROGRESS."""
    match entry:
        case [
            bytes() as receipt,
            int() | float() as done,
            None | int() | float() as total,
            None | str() as note,
        ]:
            numbers = (done, 0 if total is None else total)
            if all(not isinstance(each, bool) and abs(each) <= _FARTHEST for each in numbers):
                return receipt, done, total, (note or "")[: wire.MOST_NOTE]
    raise BadFrames("a job in a PROGRESS is [receipt, done, total or nil, note or nil], numbers up to 2**53")


def ready_options(rest: Fields) -> tuple[bool, bool, bool]:
    """``(pop, look, wait)`` of a READY's options, the field after the credit, which may be missing."""
    options = rest[0] if rest else None
    if options is None:
        return False, False, False
    if not isinstance(options, dict) or not all(isinstance(value, bool) for value in options.values()):
        raise BadFrames("the options of a READY are a map of pop, look and wait, each true or false")
    return options.get("pop", False), options.get("look", False), options.get("wait", False)


def seconds_to_wait(rest: Fields) -> float | None:
    """How many seconds to wait for a long order, the field after its own; None: until it is carried out."""
    wait = rest[0] if rest else None
    if wait is None:
        return None
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_DELAY:
        raise BadFrames(f"{wait!r} is no number of seconds from 0 to ten years, nor nil")
    return float(wait)


def listed(problems: dict[int, SluiceError]) -> list[list[Any]]:
    """Refusals by position, as they are answered: ``[[position, code, text, id of a DUPLICATE], ...]``."""
    return [[at, *error_fields(error)] for at, error in sorted(problems.items())]


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def error_fields(error: SluiceError) -> list[str]:
    """What stands for an error in an answer: its code, its text, and its detail where it has one."""
    return [error.code, str(error), *([error.detail] if error.detail else [])]
