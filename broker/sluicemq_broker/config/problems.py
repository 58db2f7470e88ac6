"""Problems of a configuration: what is wrong where, and which settings a queue can't have together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sluicemq_broker.config.settings import QueueSettings


class Problem(NamedTuple):
    """A wrong value or key: its place, and what was expected there."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class ConfigError(ValueError):
    """All keys and values that can't be used, each with its place; its text has one in each line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def problems_of_queue(queue: Callable[[str], QueueSettings], name: str) -> Iterator[Problem]:
    """Yield what is wrong with the settings of a queue together, of which each alone is right.

    ``queue(name)``: the settings of each queue. The place of a problem is the setting that is missing, if
    one is.
    """
    if circle := circle_of_dead_letters(queue, name):
        yield Problem("", f"on_dead leads from {' → '.join(circle)}: dead letters would go round for ever")
    settings = queue(name)
    if settings.limits_tenants and not settings.fair:
        yield Problem("fair", "limits its tenants: that takes fair = true")
    yield from problems_of_times(settings, {})


def problems_of_times(settings: QueueSettings, headers: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the times of jobs with these headers, in a queue with these settings."""
    delay, ttl = headers.get("delay", settings.delay), headers.get("ttl", settings.ttl)
    if ttl is not None and delay >= ttl:
        text = f"jobs would expire before they are due: delay is {delay:g} s, ttl {ttl:g} s"
        yield Problem("delay", text)


def circle_of_dead_letters(queue: Callable[[str], QueueSettings], name: str) -> list[str]:
    """Return the queues of a cycle of ``on_dead`` through this one; a queue may keep its own dead letters."""
    way = [name]
    while (to := queue(way[-1]).on_dead) and to != way[-1]:
        if to in way:
            return [*way, to] if to == name else []
        way.append(to)
    return []
