"""A value of the HTTP door is the same JSON whether it is written at once or, when large, in pieces."""

from __future__ import annotations

import base64
import json
from typing import Any

import falcon
import pytest

from sluicemq_broker.http.answers import Streamed, write

LARGE = 100_000


def written(value: Any) -> tuple[Any, int]:
    """Answer with a value; return what a client reads, and the bytes that are held meanwhile."""
    response = falcon.Response()
    write(response, value)
    if isinstance(response.stream, Streamed):
        return json.loads(b"".join(response.stream)), response.stream.held
    return json.loads(response.data or b""), 0


@pytest.mark.parametrize("payload", ["é" * LARGE, "a" * (LARGE - 1) + "é", '"\\\n' * LARGE])
def test_a_large_text_is_a_text_wherever_it_is_cut(payload: str) -> None:
    data = payload.encode()
    assert written({"id": "a", "payload": data, "result": b"ok"}) == (
        {"id": "a", "payload": payload, "result": "ok"}, len(data),
    )  # fmt: skip


@pytest.mark.parametrize("extra", range(3))
def test_large_bytes_that_are_no_text_are_base64(extra: int) -> None:
    payload = bytes(LARGE) + b"\xff" * extra + b"\xc3"
    found, held = written({"id": "a", "payload": payload})
    assert base64.b64decode(found["payload"]["base64"], validate=True) == payload
    assert (list(found), held) == (["id", "payload"], len(payload))


@pytest.mark.parametrize("payload", [b"text", b"\xff\x00"])
def test_a_small_value_has_the_form_of_a_large_one(payload: bytes) -> None:
    small, held = written({"payload": payload})
    large, _ = written({"payload": payload, "result": payload * LARGE})
    assert (small["payload"], held) == (large["payload"], 0)
    assert type(large["result"]) is type(small["payload"])


def test_a_lone_surrogate_is_escaped() -> None:
    assert written({"id": "\ud800"}) == ({"id": "\ud800"}, 0)
