"""The paths of the HTTP door, put together without a broker: what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from unittest.mock import MagicMock

from sluicemq_broker.config import Config
from sluicemq_broker.http import Site
from sluicemq_broker.parts import PARTS
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import Needs, Security


@cache
def all_needs() -> Mapping[str, Needs | None]:
    """Permission that each path needs; None: everybody may."""
    nothing: Any = MagicMock()
    counters = Counters()
    site = Site(
        *(Config.default().broker, counters, nothing, nothing, nothing, nothing),
        Security(counters),
    )
    for part in PARTS:
        part.add_paths(nothing, site)
    return site.needs
