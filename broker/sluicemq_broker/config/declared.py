"""How a setting is declared: its default, its rule, what it is for."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any

from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.rules import Rule

MIB = 2**20


def setting(default: Any, rule: Rule, doc: str, *, key: str | None = None, live: bool = False) -> Any:
    """One setting: its default (MISSING if it must be given), what it may be, what it is for.

    ``key`` is how it is written where that differs from the attribute's name; ``live``: a running broker
    takes another value when it is told to read its file again.
    """
    return field(default=default, metadata={"rule": rule, "doc": doc, "key": key, "live": live})


def option(name: str, rule: Rule | None = None, doc: str = "") -> Any:
    """The setting that gives a job's option to those without it: its default, bounds and words.

    ``rule``: where a queue says it in several settings, or may say nothing.
    """
    option = OPTIONS[name]
    return setting(option.default, rule or option.rule, doc or option.doc, live=True)


def settings_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """The settings of a table by the key that they are written with."""
    return {each.metadata["key"] or each.name: each for each in fields(kind)}
