"""Errors of dead letters, grouped by what was raised and where."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sluicemq.protocol.rows import DeadErrorRow, ErrorsRow
from sluicemq_broker.store import LatestError, type_of
from sluicemq_devices.hub import in_pieces

#: Errors in one answer; queues, kinds and workers that one names.
_MOST_ERRORS: Final = 50
_MOST_NAMES: Final = 10


def errors_row(found: Sequence[LatestError], most: int, counted: Mapping[str, int | None]) -> ErrorsRow:
    """Group errors, the latest first, of up to ``most`` dead letters of each queue.

    ``counted``: about how many each queue has; it is known where fewer than ``most`` were found.
    """
    looked = Counter(letter.queue for letter in found)
    counted = {**counted, **{queue: number for queue, number in looked.items() if number < most}}
    weights = {queue: max(1.0, (counted.get(queue) or 0) / number) for queue, number in looked.items()}
    groups: dict[tuple[str, str], list[LatestError]] = defaultdict(list)
    for letter in in_pieces(found):
        groups[letter.type or type_of(letter.reason), letter.place].append(letter)
    rows = [_row(*about, these, weights) for about, these in groups.items()]
    rows.sort(key=lambda row: (-row.count, row.type, row.place))
    total = sum(max(counted.get(queue) or 0, number) for queue, number in looked.items())
    unseen = sum(number or 0 for queue, number in counted.items() if queue not in looked)
    return ErrorsRow(errors=tuple(rows[:_MOST_ERRORS]), looked=len(found), dead=total + unseen)


def _row(kind: str, place: str, these: Sequence[LatestError], weights: Mapping[str, float]) -> DeadErrorRow:
    latest = these[0]
    return DeadErrorRow(
        type=kind,
        place=place,
        count=round(sum(weights[letter.queue] for letter in these)),
        exact=all(weights[letter.queue] == 1.0 for letter in these),
        reason=latest.reason,
        queue=latest.queue,
        job=latest.job,
        first_at=these[-1].at,
        last_at=latest.at,
        queues=_most(letter.queue for letter in these),
        kinds=_most(letter.kind for letter in these),
        workers=_most(letter.worker for letter in these),
        hosts=_most(letter.host for letter in these),
    )


def _most(names: Iterable[str]) -> tuple[str, ...]:
    """Return the most frequent of these names."""
    return tuple(name for name, _ in Counter(filter(None, names)).most_common(_MOST_NAMES))
