"""Declaration of a setting: its default, its rule, its purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any

from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.rules import Rule
from sluicemq_broker.config import rules

MIB = 2**20
#: Called with two values of a setting: whether a running broker takes the second in place of the first.
Live = Callable[[Any, Any], bool]


def setting(
    default: Any,
    rule: Rule,
    doc: str,
    *,
    key: str | None = None,
    live: bool | Live = False,
    holds: str | None = None,
) -> Any:
    """Declare a setting: its default (MISSING if it must be given), its rule, its purpose.

    With a default of None the rule takes None, too. ``key``: its name in the file, where that differs from
    the attribute's; ``live``: a running broker takes another value when it reads its file again, or whether
    it takes this one. ``holds``: the setting whose value is the text of the file that this one names.
    """
    rule = _optional(rule) if default is None else rule
    return field(
        default=default, metadata={"rule": rule, "doc": doc, "key": key, "live": live, "holds": holds}
    )


def is_live(setting: Field[Any], before: Any, after: Any) -> bool:
    """Return True if a running broker takes this value in place of the former one."""
    live = setting.metadata["live"]
    return bool(live(before, after) if callable(live) else live)


def live(default: Any, rule: Rule, doc: str) -> Any:
    """Declare a setting of which a running broker takes another value."""
    return setting(default, rule, doc, live=True)


def file_of(name: str, what: str, *, live: bool = False) -> Any:
    """Declare a setting that names a file with the value of another one, which is a secret."""
    return setting(
        None, rules.file, f"a file with {what}, which only its owner can read", live=live, holds=name
    )


def flag(doc: str, *, default: bool, live: bool = False) -> Any:
    """Declare a setting that is true or false."""
    return setting(default, rules.flag, doc, live=live)


def option(name: str, rule: Rule | None = None, doc: str = "") -> Any:
    """Declare the setting for jobs that do not give an option: the option's default, bounds and words.

    ``rule``: replaces the option's rule, where a queue has several settings for it.
    """
    option = OPTIONS[name]
    return live(option.default, rule or option.rule, doc or option.doc)


def _optional(rule: Rule) -> Rule:
    return rule._replace(read=lambda value: None if value is None else rule(value))


def settings_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """Return the settings of a table by the key that they are written with."""
    return {field.metadata["key"] or field.name: field for field in fields(kind)}
