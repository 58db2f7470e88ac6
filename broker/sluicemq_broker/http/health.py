"""Whether the broker lives, and whether it can take and hand out jobs now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import falcon

from sluicemq_broker.context import Owners
from sluicemq_broker.store import StoreAvailability

#: Where health is asked for: answered whatever else there is, and by whatever name the broker is called.
PATHS: Final = frozenset({"/healthz", "/readyz"})
_WELL: Final = ""


class Health:
    """What makes a broker ready, each by its name with what is wrong with it: an empty text if nothing is.

    ``doors``: whether they are open.
    """

    def __init__(self, store: StoreAvailability, owners: Owners, doors: Callable[[], bool]) -> None:
        self._store = store
        self._owners = owners
        self._doors = doors

    @property
    def problems(self) -> dict[str, str]:
        """Of the store, the lease and the doors."""
        no_lease = "another broker may have taken this one for dead: nothing is handed out"
        return {
            "store": self._store.problem,
            "lease": _WELL if self._owners.sure else no_lease,
            "doors": _WELL if self._doors() else "the broker starts, or stops",
        }


class Live:
    """``/healthz``: the process lives, whatever else there is."""

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        """200, always."""
        response.content_type = falcon.MEDIA_TEXT
        response.text = "ok\n"


class Ready:
    """``/readyz``: it can take jobs and hand them out; 503 says what is missing."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        """``{serves, store, lease, doors}``, each of these ``ok`` or what is wrong."""
        problems = self._health.problems
        ready = not any(problems.values())
        shown: dict[str, Any] = {name: problem or "ok" for name, problem in problems.items()}
        response.status = falcon.HTTP_200 if ready else falcon.HTTP_503
        response.media = {"serves": ready, **shown}
