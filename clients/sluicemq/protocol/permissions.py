"""Permissions of a principal: actions, each on the names of queues or streams that match its patterns.

A pattern is a name in which ``*`` stands for any characters, also for none. As text::

    push=mail.*,sms work=* operate

As TOML or JSON: ``{ push = ["mail.*", "sms"], work = ["*"], operate = true }``, or ``"all"``, or ``"none"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Self

from sluicemq.protocol.names import LONGEST_NAME

#: Patterns of one action, at most, and characters of one.
MOST_PATTERNS: Final = 1000
LONGEST_PATTERN: Final = 2 * LONGEST_NAME
#: Pattern that matches every name, and "", which stands for what has no name.
EVERY: Final = "*"
ALL: Final = "all"
NONE: Final = "none"


class Action(StrEnum):
    """Actions that a principal can be permitted."""

    PUSH = "push"
    """Push jobs into a queue; forward or fan out jobs into it."""
    WORK = "work"
    """Take jobs of a queue and end them."""
    READ = "read"
    """Peek at a queue, show its jobs, their results and its counts; list it."""
    MANAGE = "manage"
    """Pause, purge, redrive, delete, change; recurring jobs and tasks of a queue; trim and erase a stream."""
    PUBLISH = "publish"
    """Publish into a stream."""
    SUBSCRIBE = "subscribe"
    """Read a stream, hold and move its subscriptions; list it."""
    CREATE = "create"
    """Make a queue or stream by the first push or message into it."""
    OPERATE = "operate"
    """See statistics, configuration and metrics of the broker, and change principals."""


class Permissions:
    """Actions by patterns of names; ``Permissions({Action.PUSH: ("mail.*",)})``."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Mapping[Action, Iterable[str]] = {}) -> None:
        self._patterns = {
            action: tuple(dict.fromkeys(patterns[action])) for action in Action if patterns.get(action)
        }

    @classmethod
    def all(cls) -> Self:
        """Return the permission to do everything."""
        return cls(dict.fromkeys(Action, (EVERY,)))

    @classmethod
    def read(cls, value: Any) -> Self:
        """Read permissions as TOML, JSON or text have them; raises ValueError with what is expected."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls._of_text(value)
        if not isinstance(value, Mapping):
            raise ValueError(_EXPECTED)  # noqa: TRY004 - rules raise ValueError
        return cls({_action(key): _read_patterns(key, patterns) for key, patterns in value.items()})

    def allow(self, action: Action, name: str = "") -> bool:
        """Return whether an action on this name is permitted; "": what has no name, which ``*`` matches."""
        return any(matches(pattern, name) for pattern in self._patterns.get(action, ()))

    def patterns(self, action: Action) -> tuple[str, ...]:
        """Return the patterns of one action; none: it is never permitted."""
        return self._patterns.get(action, ())

    def plain(self) -> dict[str, list[str]]:
        """Return them as JSON, msgpack and MongoDB have them."""
        return {str(action): list(patterns) for action, patterns in self._patterns.items()}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permissions) and self._patterns == other._patterns

    def __hash__(self) -> int:
        return hash(tuple(self._patterns.items()))

    def __str__(self) -> str:
        if self == Permissions.all():
            return ALL
        words = [
            str(action) if action is Action.OPERATE and names == (EVERY,) else f"{action}={','.join(names)}"
            for action, names in self._patterns.items()
        ]
        return " ".join(words) or NONE

    def __repr__(self) -> str:
        return f"Permissions({str(self)!r})"

    @classmethod
    def _of_text(cls, text: str) -> Self:
        if text.strip() in (ALL, NONE):
            return cls.all() if text.strip() == ALL else cls()
        found: dict[Action, tuple[str, ...]] = {}
        for word in text.split():
            key, _, patterns = word.partition("=")
            action = _action(key)
            found[action] = found.get(action, ()) + _read_patterns(
                key, patterns.split(",") if patterns else True
            )
        return cls(found)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in time linear in both: ``*`` stands for any characters."""
    if EVERY not in pattern:
        return name == pattern
    first, *middle, last = pattern.split(EVERY)
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


_EXPECTED: Final = (
    f'"{ALL}", "{NONE}", or actions with patterns of names, such as push=mail.*,sms work=* operate; '
    f"actions are {', '.join(Action)}"
)


def _action(key: Any) -> Action:
    try:
        return Action(key)
    except ValueError:
        raise ValueError(f"{_EXPECTED}, not {str(key)[:64]!r}") from None


def _read_patterns(key: Any, value: Any) -> tuple[str, ...]:
    """Return the patterns of one action; ``true`` and nothing stand for every name, ``false`` for none."""
    if isinstance(value, bool):
        return (EVERY,) if value else ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) > MOST_PATTERNS:
        raise ValueError(f"a list of up to {MOST_PATTERNS} patterns for {key}")
    for pattern in given:
        if not _is_pattern(pattern):
            raise ValueError(
                f"patterns of 1 to {LONGEST_PATTERN} visible characters of ASCII, without commas, for {key}"
            )
    return tuple(given)


def _is_pattern(value: Any) -> bool:
    """Return whether this is one pattern, also within a text; names have ASCII only."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_PATTERN:
        return False
    return value.isascii() and value.isprintable() and not set(value) & {" ", ","}
