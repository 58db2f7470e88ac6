"""Answers to writes of many documents: which were stored, and which were refused and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo.errors import BulkWriteError

from sluicemq.protocol.errors import SluiceError, TooLargeError
from sluicemq_broker.store.errors import (
    AT_FAULT,
    TROUBLE,
    Doubtful,
    ServerCode,
    Unclear,
    brief,
)
from sluicemq_broker.store.values import Document


@dataclass(slots=True)
class Pushed:
    """The outcome of a push: positions whose id existed before, and positions refused with the reason.

    ``taken``: positions whose ``dedupe_id`` another document has, to be judged still.
    """

    existing: list[int] = field(default_factory=list)
    refused: dict[int, SluiceError] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def add(self, part: Pushed, positions: Sequence[int]) -> None:
        """Add the outcome of a part; its positions count in ``positions``."""
        if part == ALL_STORED:
            return
        self.existing = sorted([*self.existing, *(positions[at] for at in part.existing)])
        self.refused |= {positions[at]: error for at, error in part.refused.items()}
        self.taken += [positions[at] for at in part.taken]


#: The outcome of nearly all pushes.
ALL_STORED: Final = Pushed()


def outcome(answer: Document, *, repeatable: bool = True) -> Pushed:
    """Read the answer to an insert; ``repeatable``: it can be sent again.

    A duplicate key means "stored" only if it is that of ``_id`` and durability is not in doubt. A duplicate
    key of an index that somebody has made is the job's fault, like all that only this one document can be to
    blame for. A server in trouble makes it :class:`Unclear`, for it may take the job later; an unknown code
    makes it :class:`Doubtful`.
    """
    if "writeConcernError" in answer:
        raise Unclear(f"durability is not known: {str(answer['writeConcernError'])[:200]}")
    return read_errors(answer["writeErrors"], repeatable=repeatable) if "writeErrors" in answer else Pushed()


def refusals(error: BulkWriteError) -> Pushed:
    """Read the errors of an unordered bulk write."""
    if error.details.get("writeConcernErrors"):
        raise Unclear(f"durability is not known: {brief(error)}") from error
    return read_errors(error.details["writeErrors"])


def read_errors(errors: Sequence[Mapping[str, Any]], *, repeatable: bool = True) -> Pushed:
    """Read the errors of documents that were not written; ``repeatable``: the write can be repeated."""
    pushed = Pushed()
    codes = {error.get("code") for error in errors}
    if codes & TROUBLE:
        raise Unclear(f"MongoDB has not taken all: {str(errors)[:200]}")
    if repeatable and codes - {ServerCode.DUPLICATE_KEY} - AT_FAULT:
        raise Doubtful(f"MongoDB has not taken all: {str(errors)[:200]}")
    for error in errors:
        at = error["index"]
        key = error.get("keyPattern", {"_id": 1}) if error.get("code") == ServerCode.DUPLICATE_KEY else None
        if key == {"_id": 1}:
            pushed.existing.append(at)
        elif key == {"dedupe_id": 1}:
            pushed.taken.append(at)
        else:
            pushed.refused[at] = TooLargeError(f"MongoDB refused it: {str(error.get('errmsg'))[:200]}")
    return pushed
