"""Text that people read: what an exception says, how a value is shown, cut short and safe to encode."""

from __future__ import annotations

from typing import Final

#: Characters of an exception's text that are kept as a reason.
MOST_REASON: Final = 1000

#: Characters of a traceback that are kept, and of the type and place of an error.
MOST_TRACEBACK: Final = 8000
MOST_NAMED: Final = 200

_MOST_SHOWN: Final = 100  # characters of a value that can't be used


def said(error: BaseException, *, named: bool = False) -> str:
    """Return the text of an exception, after its type's name if ``named``; its own methods may fail."""
    try:
        reason = escaped(str(error))
    except BaseException as raised:  # noqa: BLE001 - also SystemExit and the like: they are the user's
        reason, named = f"its __str__ raises {_type_name(raised)}", True
    return f"{_type_name(error)}: {reason}"[:MOST_REASON] if named else reason


def brief(value: object) -> str:
    """Return how a value that can't be used is shown."""
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - of a user's type, or of a number with thousands of digits
        shown = f"a {_type_name(value)}"
    return escaped(shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…")


def escaped(value: str, most: int = MOST_REASON) -> str:
    """Return the first ``most`` characters of a text; lone surrogates become escapes, for UTF-8."""
    start = str.__getitem__(value, slice(most))
    if is_utf8(start):
        return start
    return str.encode(start, "utf-8", "backslashreplace").decode()[:most]


def cut_in_middle(text: str, most: int) -> str:
    """Return a text of ``most`` characters at most: a third of its beginning, and its end."""
    if len(text) <= most:
        return text
    mark = f"\n… {len(text) - most} characters are left out …\n"
    first = most // 3
    return text[:first] + mark + text[len(text) - most + first + len(mark) :]


def start_of(text: bytes, most: int, errors: str = "backslashreplace") -> str:
    """Return the first ``most`` characters of a text in UTF-8; no more of it is decoded.

    ``errors``: what becomes of bytes that are no UTF-8. Each takes 0.1 us: 24 MB of them took three seconds.
    """
    return text[: 4 * most].decode("utf-8", errors)[:most]


def is_utf8(value: str) -> bool:
    """Return False for a text with lone surrogates, which UTF-8 can't hold."""
    try:
        return str.isascii(value) or str.encode(value) is not None
    except UnicodeEncodeError:
        return False


def _type_name(value: object) -> str:
    try:
        return escaped(type(value).__name__)
    except BaseException:  # noqa: BLE001 - a metaclass can raise anything
        return "object"
