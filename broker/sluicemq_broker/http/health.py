"""``/healthz`` and ``/readyz``: the broker lives; it can take and hand out jobs now."""

from __future__ import annotations

from typing import Final

import falcon

from sluicemq.protocol.rows import ReadinessRow
from sluicemq_broker.admin import BrokerAdmin
from sluicemq_broker.http.answers import write

#: Paths that are always answered, also under a name that the door doesn't have.
PATHS: Final = frozenset({"/healthz", "/readyz"})


def live(_subject: object, _request: falcon.Request, response: falcon.Response) -> None:
    """Answer 200: the process lives."""
    response.content_type = falcon.MEDIA_TEXT
    response.text = "ok\n"


def ready(broker: BrokerAdmin, response: falcon.Response) -> None:
    """Answer 200 if the broker can take and hand out jobs; 503 says what is missing."""
    problems = broker.problems()
    serves = not any(problems.values())
    response.status = falcon.HTTP_200 if serves else falcon.HTTP_503
    write(response, ReadinessRow(serves=serves, **{name: why or "ok" for name, why in problems.items()}))
