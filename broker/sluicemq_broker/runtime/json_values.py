"""JSON from outside, read strictly: each accepted value can be stored, sent and shown again."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text in UTF-8; raises ValueError for everything else.

    Python's reader takes more than JSON: halves of surrogate pairs, which no UTF-8 can hold, written as
    an escape or as three bytes, and ``NaN``, which other readers refuse.
    """
    whole = text.decode()
    try:
        value = json.loads(whole, parse_constant=_refuse)
        if "\\ud" in whole or "\\uD" in whole:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")
