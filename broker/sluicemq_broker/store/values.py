"""Values as MongoDB has them: documents, and dates without a time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

Document = dict[str, Any]


def date(seconds: float) -> datetime:
    """Unix seconds as MongoDB's date, which keeps milliseconds: naive UTC, as it is read.

    With a time zone the driver takes half as long again to write a job.
    """
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def seconds(when: datetime) -> float:
    """MongoDB's date, naive UTC, as Unix seconds."""
    return when.replace(tzinfo=UTC).timestamp()


#: Named wherever ids are given: the jobs asked for are the first of the ready index too, so MongoDB may
#: take that one for as good, and then reads all of it (100,000 keys for 1,000 jobs).
BY_ID: Final = "_id_"

#: Seconds to sleep so that others have their turn of the hub: a sleep of 0 would run before timers.
MOMENT: Final = 1e-9
