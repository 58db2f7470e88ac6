"""Commands of version 0.3 that have other names now: hidden, they do what they did, and say the new name."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, Final

import click

from sluicemq.cli.nouns import note_former

#: The new form of each; options in it are set.
FORMER: Final[dict[str, str]] = {
    "purge": "queues purge",
    "delete": "queues delete",
    "pause": "queues pause",
    "resume": "queues resume",
    "queue set": "queues set-settings",
    "queue unset": "queues unset-settings",
    "queue show": "queues settings",
    "peek": "jobs list",
    "show": "jobs show",
    "cancel": "jobs cancel",
    "promote": "jobs promote",
    "change": "jobs change",
    "result": "jobs result",
    "dead list": "dead-letters list",
    "dead show": "jobs show",
    "dead redrive": "dead-letters redrive",
    "dead purge": "dead-letters discard",
    "done list": "jobs list --state done",
    "done show": "jobs show",
    "schedule add": "schedules add",
    "schedule list": "schedules list",
    "schedule remove": "schedules delete",
    "schedule pause": "schedules pause",
    "schedule resume": "schedules resume",
    "schedule run-now": "schedules run",
    "stream list": "streams list",
    "stream show": "streams show",
    "stream publish": "streams publish",
    "stream read": "streams read",
    "stream tail": "streams tail",
    "stream trim": "streams trim",
    "stream delete": "streams erase",
    "stream subscriptions": "subscriptions list",
    "stream seek": "subscriptions seek",
    "stream release": "subscriptions release",
    "tasks": "operations list",
    "task show": "operations show",
    "task cancel": "operations cancel",
    "user add": "principals add",
    "user list": "principals list",
    "user show": "principals show",
    "user remove": "principals remove",
    "user rotate": "principals rotate",
    "user permit": "principals grant",
    "user hash": "principals hash",
    "upgrade": "brokers upgrade",
}
#: First words of these.
WORDS: Final = frozenset(former.partition(" ")[0] for former in FORMER)


def former(word: str, noun: Callable[[str], click.Command | None]) -> click.Command:
    """Return the command, or the group, of an earlier version; ``noun`` finds the groups of this one."""
    if word in FORMER:
        return _alias(word, noun)
    group = click.Group(word, hidden=True)
    for old in FORMER:
        if old.startswith(f"{word} "):
            group.add_command(_alias(old, noun))
    return group


def _alias(old: str, noun: Callable[[str], click.Command | None]) -> click.Command:
    new = FORMER[old]
    group, verb, *preset = new.split()
    found: Any = noun(group)
    alias: click.Command = copy(found.commands[verb])
    given = {flag.lstrip("-"): value for flag, value in zip(preset[::2], preset[1::2], strict=True)}
    alias.name, alias.hidden = old.rpartition(" ")[2], True
    alias.params = [param for param in alias.params if param.name not in given]
    alias.callback = _noting(old, new, alias.callback, given)
    return alias


def _noting(old: str, new: str, callback: Any, given: dict[str, Any]) -> Callable[..., Any]:
    @wraps(callback)
    def call(*arguments: Any, **values: Any) -> Any:
        note_former(click.get_current_context(), f"sluicemq {old}", f"sluicemq {new}")
        return callback(*arguments, **values, **given)

    return call
