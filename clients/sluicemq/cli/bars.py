"""Progress bars on a terminal, loaded only when they are needed: they load slowly."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


def counted(console: Console) -> Progress:
    """Return bars with a title, a count of a total, and the time so far."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)


def rated(console: Console, what: str) -> Progress:
    """Return a bar with a share of the whole; its tasks have the fields ``jobs`` and ``rate``."""
    jobs = TextColumn("{task.fields[jobs]:,} jobs, {task.fields[rate]:,.0f}/s")
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), TaskProgressColumn(), jobs)
    return Progress(*columns, console=console, disable=not console.is_terminal)
