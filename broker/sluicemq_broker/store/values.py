"""Values as MongoDB has them: documents, dates without a time zone, and hints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pymongo.collection import Collection

Document = dict[str, Any]

#: The collection of a queue.
Jobs = Collection[Document]

#: Seconds of a day: for so long is kept what other brokers, or people, may still ask for.
DAY: Final = 86_400


def date(seconds: float) -> datetime:
    """Return Unix seconds as MongoDB's date, in milliseconds: naive UTC, as it is read.

    With a time zone the driver takes 50 % longer to write a job.
    """
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def seconds(when: datetime) -> float:
    """Return MongoDB's date, naive UTC, as Unix seconds."""
    return when.replace(tzinfo=UTC).timestamp()


#: The hint of every statement that names ids: often these jobs are the first of the ready index, too, so
#: MongoDB may choose that one, and then reads all of it (100,000 keys for 1,000 jobs).
BY_ID: Final = "_id_"
