"""The paths of the HTTP door, put together without a broker: what each of them needs."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from reference import paths, site
from sluicemq_broker.security import Needs


@cache
def all_needs() -> Mapping[str, Needs | None]:
    """Permission that each path needs; None: everybody may."""
    return paths()


@cache
def description() -> dict[str, Any]:
    """The OpenAPI document."""
    return dict(json.loads(site().description))
