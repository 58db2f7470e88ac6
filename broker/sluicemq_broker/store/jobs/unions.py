"""Questions to several collections, or several to one, by one statement: ``$unionWith``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sluicemq_broker.store.values import Document

#: True of every document. MongoDB runs a branch with it by its classic engine. The newer one of 6.0.5 ends
#: the whole mongod (a null pointer in ``generateIndexScan``) where the collection of a later branch has been
#: made or renamed since the statement began: a queue is removed while a dashboard counts jobs, say.
_CLASSIC: Final[Document] = {"$jsonSchema": {}}


class Branch(NamedTuple):
    """The stages that read one collection, of which the first is a ``$match`` or reads no index."""

    collection: str
    stages: Sequence[Document]


def union(branches: Iterable[Branch]) -> list[Document]:
    """Return the pipeline, asked of the first collection, that yields what all branches find, in order."""
    first, *others = branches
    return [
        *first.stages,
        *({"$unionWith": {"coll": each.collection, "pipeline": _classic(each.stages)}} for each in others),
    ]


def _classic(stages: Sequence[Document]) -> list[Document]:
    first, *rest = stages
    return [{"$match": {**first["$match"], **_CLASSIC}}, *rest] if "$match" in first else [*stages]
