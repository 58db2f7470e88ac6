"""The flags that say what a job's options are, made of the table of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from sluicemq.options import OPTIONS, Option

_Function = TypeVar("_Function", bound=Callable[..., Any])


def job_flags(options: Iterable[Option], **words: str) -> Callable[[_Function], _Function]:
    """Flags for these options, in their order; ``words`` are for those whose own sentence does not fit."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(list(options)):
            sentence = words.get(option.name, option.doc)
            function = click.option(
                flag(option),
                option.name,
                type=_Value(option),
                metavar=option.metavar,
                help=f"{sentence[0].upper()}{sentence[1:]}.",
            )(function)
        return function

    return decorate


def flag(option: Option) -> str:
    """How the option is written on the command line."""
    return "--" + option.name.replace("_", "-")


def of_push() -> list[Option]:
    """Those that have a flag of their own in ``sluicemq push``."""
    return [each for each in OPTIONS.values() if each.metavar]


def of_change() -> list[Option]:
    """Those that can be changed while a job waits."""
    return [each for each in OPTIONS.values() if each.changeable]


class _Value(click.ParamType[Any]):
    """A value that the option's rule takes."""

    def __init__(self, option: Option) -> None:
        self.name = option.metavar
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            read = self._option.read(value)
        except ValueError:
            read = None
        if not self._option.rule.holds(read):
            self.fail(f"{value!r}: expected {self._option.rule.expected}", param, ctx)
        return read
