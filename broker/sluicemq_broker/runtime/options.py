"""Maps of options from clients: each option is read by a rule, with errors that name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.rules import Rule, kept


def read_options(given: Mapping[Any, Any], rules: Mapping[str, Rule], what: str) -> dict[str, Any]:
    """Return options as their rules read them; None counts as not given.

    ``what`` has the options, such as "a READ". Raises BadFrames for an unknown option and a wrong value.
    """
    read: dict[str, Any] = {}
    for name, value in given.items():
        rule = rules.get(name) if isinstance(name, str) else None
        if rule is None:
            raise BadFramesError(f"{what} has no option {str(name)[:64]!r}; it has {', '.join(rules)}")
        if value is None:
            continue
        try:
            read[name] = rule(value)
        except ValueError as error:
            raise BadFramesError(f"{name} of {what} is {str(value)[:64]!r}, expected {error}") from None
    return read


def array_of(kind: type, expected: str) -> Rule:
    """Return a rule for an array of values of one type."""
    return kept(
        expected, lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)
    )


TEXT: Final = kept("a string", lambda value: isinstance(value, str))
FLAG: Final = kept("true or false", lambda value: isinstance(value, bool))
#: An option that is off unless it is true.
IS_TRUE: Final = Rule("true", lambda value: value is True)
