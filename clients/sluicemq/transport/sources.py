"""Places of what a client needs to get into a broker: keywords, the environment, a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sluicemq.protocol import environment
from sluicemq.transport import endpoints, profiles

#: The variable of each value; the endpoint's is in ``endpoints``, the profile's in ``profiles``.
VARIABLES: Final = {
    key: name for key, name in environment.OF_CLIENTS.items() if key not in ("endpoint", "profile")
}


class Source:
    """One place: its values, and how errors call them."""

    def __init__(self, values: Mapping[str, Any], called: Callable[[str], str]) -> None:
        self.values = values
        self._called = called

    def wrong(self, key: str, why: object) -> ValueError:
        """Return the error for one of its values."""
        return ValueError(f"{self._called(key)}: {why}")


def sources_of(named: tuple[str, ...] | None, given: Mapping[str, Any]) -> list[Source]:
    """Return all places, the strongest first: keywords, the environment, the profile if one applies.

    A profile applies that is named. The default profile applies where no endpoint is named: a password for
    one broker must not go to another.
    """
    variables = {key: value for key, name in VARIABLES.items() if (value := environment.given(name))}
    found = [Source(given, str), Source(variables, VARIABLES.__getitem__)]
    name = given.get("profile") or environment.given(profiles.VARIABLE) or None
    if name is not None or not (named or environment.given(endpoints.VARIABLE)):
        profile = profiles.find(name)
        if profile is not None:
            found.append(Source(profile.values, profile.called))
    return found


def first(sources: Sequence[Source], *keys: str) -> tuple[Source, str] | None:
    """Return the strongest place that has one of these values, and which one."""
    return next(((source, key) for source in sources for key in keys if key in source.values), None)


def endpoints_of(named: tuple[str, ...] | None, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the endpoints to connect to: the program's, the environment's, the profile's, or the default."""
    found = first(sources, "endpoint")
    if found is None or named is not None or environment.given(endpoints.VARIABLE):
        return endpoints.chosen(named)
    source, key = found
    try:
        return endpoints.checked(source.values[key])
    except ValueError as error:
        raise source.wrong(key, error) from None
