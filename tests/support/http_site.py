"""The paths of the HTTP door, put together without a broker: what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from reference import paths
from sluicemq_broker.security import Needs


@cache
def all_needs() -> Mapping[str, Needs | None]:
    """Permission that each path needs; None: everybody may."""
    return paths()
