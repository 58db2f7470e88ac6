"""Bodies of requests."""

from __future__ import annotations

from typing import Any

import falcon

from sluicemq.protocol.errors import BadFramesError
from sluicemq_broker.runtime import read_json


def read_body(request: falcon.Request) -> dict[str, Any]:
    """Read the body of a request; raises BadFrames."""
    content = request.bounded_stream.read()
    try:
        body = read_json(content) if content else {}
    except ValueError as error:
        raise BadFramesError(f"a request that changes something needs a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadFramesError("a request that changes something needs a JSON object")
    return body
