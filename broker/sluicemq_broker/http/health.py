"""``/healthz`` and ``/readyz``: the broker lives; it can take and hand out jobs now."""

from __future__ import annotations

from typing import Final

import falcon

from sluicemq.protocol.rows import ReadinessRow
from sluicemq_broker.admin import BrokerAdmin
from sluicemq_broker.http.answers import write

#: Paths that are always answered, also under a name that the door doesn't have.
PATHS: Final = frozenset({"/healthz", "/readyz"})


class Live:
    """``/healthz``: the process lives."""

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        """Answer 200."""
        response.content_type = falcon.MEDIA_TEXT
        response.text = "ok\n"


class Ready:
    """``/readyz``: 200 if the broker can take and hand out jobs; 503 says what is missing."""

    def __init__(self, broker: BrokerAdmin) -> None:
        self._broker = broker

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        """Answer ``{serves, store, lease, doors}``, the last three ``ok`` or what is wrong."""
        problems = self._broker.problems()
        ready = not any(problems.values())
        shown = {name: problem or "ok" for name, problem in problems.items()}
        response.status = falcon.HTTP_200 if ready else falcon.HTTP_503
        write(response, ReadinessRow(serves=ready, **shown))
