"""JSON of strangers: what no other reader takes, or no store holds, is refused in words."""

from __future__ import annotations

import pytest

from sluicemq_broker.runtime import read_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{}", {}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        ('["ä", 1.5]'.encode(), ["ä", 1.5]),
        (b'"\\\\ud8"', "\\ud8"),
    ],
)
def test_json_is_read(text: bytes, value: object) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff", b"\xed\xa0\x80", b'"\xed\xa0\x80"', b'"\\ud800"', b'{"\\uDFFF": 1}',
        b'{"a": ["\\ud800x"]}',
        b"NaN", b"[Infinity]", b"-Infinity", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000,
        "{}".encode("utf-16"),
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_all_else_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        read_json(text)
    assert str(refusal.value).isprintable()
