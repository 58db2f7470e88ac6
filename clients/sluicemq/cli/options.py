"""Flags for the options of a job, made from the table of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from time import time
from typing import Any, Final, TypeVar

import click

from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.options import OPTIONS, Option
from sluicemq.protocol.rules import Rule, duration

_Function = TypeVar("_Function", bound=Callable[..., Any])


def job_flags(options: Iterable[Option], **words: str) -> Callable[[_Function], _Function]:
    """Return flags for these options, in their order; ``words`` replace sentences that do not fit."""
    return together(*(_flag_of(option, words.get(option.name, option.doc)) for option in options))


def together(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Return several options as one, in their order."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _flag_of(option: Option, sentence: str) -> Callable[[Any], Any]:
    return click.option(
        flag(option),
        option.name,
        type=Ruled(option.rule, option.metavar),
        metavar=option.metavar,
        help=f"{sentence[0].upper()}{sentence[1:]}.",
    )


def flag(option: Option) -> str:
    """Return the name of an option on the command line."""
    return "--" + option.name.replace("_", "-")


def of_push() -> list[Option]:
    """Return the options that have a flag of their own in ``sluicemq push``."""
    return [option for option in OPTIONS.values() if option.metavar]


def of_change() -> list[Option]:
    """Return the options that can be changed while a job waits."""
    return [option for option in OPTIONS.values() if option.changeable]


class Ruled(click.ParamType[Any]):
    """A value that a rule reads."""

    def __init__(self, rule: Rule, name: str = "value") -> None:
        self.name = name
        self._rule = rule

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as the rule reads it."""
        try:
            return self._rule.of_text(value) if isinstance(value, str) else self._rule(value)
        except ValueError as error:
            self.fail(f"{value!r}: expected {error}", param, ctx)


def timespan(least: float = 0.0, *, above: bool = False) -> Ruled:
    """Return a parameter type for a span of time, as 90, 90s or 1h30m; ``above``: more than the least."""
    expected = f"seconds, {'more than' if above else 'at least'} {least:g}, at most ten years"
    return Ruled(duration(least, TEN_YEARS, expected, above=above), "seconds")


class Ago(click.ParamType[float]):
    """A moment, as seconds before now: a span as 2h, or a date and time as 2030-01-31T12:00."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; a time without a zone is local."""
        with suppress(ValueError):
            return time() - datetime.fromisoformat(str(value)).timestamp()
        return float(timespan().convert(value, param, ctx))


_BYTES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Memory(click.ParamType[int]):
    """Bytes, with K, M or G behind them."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        found = re.fullmatch(r"(\d+)([KMG]?)", str(value).upper())
        if found is None:
            self.fail(f"{value!r} is not a number of bytes, as 512M or 2G", param, ctx)
        return int(found[1]) * _BYTES[found[2]]


class Weights(click.ParamType[dict[str, int]]):
    """Queues with commas between them, each with its weight, as ``a,b=3``."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Return the weights by queue."""
        if isinstance(value, dict):
            return value
        weights = {}
        for share in str(value).split(","):
            queue, _, weight = share.strip().partition("=")
            if not queue or not (weight or "1").isdecimal():
                self.fail(f"{share!r} is no queue, or queue=weight", param, ctx)
            weights[queue] = int(weight or 1)
        return weights
