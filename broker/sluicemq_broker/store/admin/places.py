"""Places in an order of jobs: where a page, or a slice of a search, ended and the next one begins.

A place has the values that are sorted by, of the last job that was looked at, as plain numbers and strings.
It is never a number of jobs to skip. So no job comes twice or is left out though others come and go, and the
thousandth page costs as much as the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sluicemq.protocol.errors import BadFramesError
from sluicemq_broker.store.jobs.documents import ORDER
from sluicemq_broker.store.values import Document, date, seconds

Place = list[Any]
#: Fields by which jobs are sorted, each with its direction.
Sort = Sequence[tuple[str, int]]


def ranges(these: Document, sort: Sort, after: Place | None) -> Iterator[Document]:
    """Yield the filters that together have the jobs of ``these`` behind a place, in their order."""
    if after is None:
        yield these
        return
    last = _values(after, sort)
    for count in reversed(range(len(sort))):
        alike = {name: {"$eq": value} for (name, _), value in zip(sort[:count], last, strict=False)}
        yield {"$and": [these, {**alike, sort[count][0]: _after(last[count], sort[count][1])}]}


def place_of(job: Mapping[str, Any], sort: Sort) -> Place | None:
    """Return the place of a job; None: of a document that is no job, behind which nothing begins."""
    place = [
        milliseconds(value) if isinstance(value := job.get(name), datetime) else value for name, _ in sort
    ]
    try:
        _values(place, sort)
    except BadFramesError:
        return None
    return place


def moment(value: int) -> float:
    """Return the seconds of a time in a place; raises BadFrames for one that no date can have."""
    # of the year 9998
    if not 0 <= value < 253_370_000_000_000:
        raise not_a_place()
    return value / 1000


def milliseconds(when: datetime) -> int:
    """Return a date as it is in a place."""
    return round(seconds(when) * 1000)


def not_a_place() -> BadFramesError:
    """Return the error for a place that this order does not have."""
    return BadFramesError("after is not what the last page of this state gave as next")


def _values(place: Place, sort: Sort) -> list[Any]:
    """Return the values of the sorted fields; raises BadFrames where a place has others."""
    numbers = {name for name, _ in ORDER}  # other fields may be missing, or texts
    if len(place) != len(sort) or not all(
        isinstance(value, int if name in numbers else int | str | None)
        for value, (name, _) in zip(place, sort, strict=True)
    ):
        raise not_a_place()
    return [
        date(moment(value)) if name.endswith("_at") and value is not None else value
        for value, (name, _) in zip(place, sort, strict=True)
    ]


def _after(value: Any, way: int) -> Document:
    """Return the condition for values after one; no value is before all texts."""
    if value is None:
        return {"$gte": ""}
    return {"$gt" if way > 0 else "$lt": value}
