"""Long forms of tests, which run with ``--full`` or ``--hours`` only: of each a short one runs always."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long(*values: Any, **named: Any) -> Any:
    """One set of parameters that only ``--full`` tries."""
    return pytest.param(*values, marks=pytest.mark.full, **named)


def very_long(*values: Any) -> Any:
    """One set of parameters that only ``--hours`` tries."""
    return pytest.param(*values, marks=pytest.mark.hours)


def longer(config: pytest.Config) -> int:
    """How many times as long as with ``--full`` what explores at random goes on."""
    return 10 if config.getoption("--hours") else 1


def first_of(*values: Any) -> list[Any]:
    """The others run with ``--full`` only."""
    return [values[0], *map(long, values[1:])]


def short_where(values: Iterable[Any], short: Callable[[Any], bool]) -> list[Any]:
    """Make parameters of which those for which this holds run always, the others with ``--full``."""
    return [value if short(value) else long(value) for value in values]
