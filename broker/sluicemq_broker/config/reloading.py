"""Changes that a running broker takes over when it reads its file again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.display import as_toml
from sluicemq_broker.config.loading import Config
from sluicemq_broker.config.security_settings import PrincipalSettings
from sluicemq_broker.config.settings import QueueSettings


class Change(NamedTuple):
    """A value that differs: its place, before and after; ``live``: a running broker takes it over."""

    place: str
    before: Any
    after: Any
    live: bool

    def __str__(self) -> str:
        before, after = (_shown(each) for each in (self.before, self.after))
        change = "another one" if before == after else f"{before} -> {after}"  # equal without passwords
        return f"{self.place}: {change}"


def changes(old: Config, new: Config) -> list[Change]:
    """Return all values that differ, table by table."""
    found = [*_differences("[broker]", old.broker, new.broker)]
    found += _differences('[queues."*"]', old.other_queues, new.other_queues)
    for name in dict.fromkeys((*old.queues, *new.queues)):
        found += _differences(f"[queues.{name}]", old.queue(name), new.queue(name))
    found += _differences('[streams."*"]', old.other_streams, new.other_streams)
    for name in dict.fromkeys((*old.streams, *new.streams)):
        found += _differences(f"[streams.{name}]", old.stream(name), new.stream(name))
    for name in dict.fromkeys((*old.schedules, *new.schedules)):
        was, is_ = old.schedules.get(name), new.schedules.get(name)
        if was and is_:
            found += _differences(f"[schedules.{name}]", was, is_)
        elif was or is_:
            found.append(Change(f"[schedules.{name}]", bool(was), bool(is_), live=False))
    found += _differences("[security]", old.security, new.security)
    for name in dict.fromkeys((*old.principals, *new.principals)):
        found += _of_principal(
            f"[security.principals.{name}]", old.principals.get(name), new.principals.get(name)
        )
    for what, before, after in (("routes", old.routes, new.routes), ("devices", old.devices, new.devices)):
        if len(before) != len(after):
            found.append(Change(f"number of [[{what}]]", len(before), len(after), live=False))
        for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
            found += _differences(f"[[{what}]] no. {number}", one, other)
    return found


def taken_over(old: Config, new: Config) -> Config:
    """Return the old configuration with those values of the new one that a running broker can take.

    It takes none of streams and schedules yet.
    """
    names = dict.fromkeys((*old.queues, *new.queues))
    queues: dict[str, QueueSettings] = {name: _merged(old.queue(name), new.queue(name)) for name in names}
    return replace(
        old,
        broker=_merged(old.broker, new.broker),
        queues=MappingProxyType(queues),
        other_queues=_merged(old.other_queues, new.other_queues),
        security=_merged(old.security, new.security),
        principals=new.principals,
    )


def _merged(old: Any, new: Any) -> Any:
    live = [each.name for each in settings_of(type(old)).values() if each.metadata["live"]]
    return replace(old, **{name: getattr(new, name) for name in live})


def _differences(place: str, old: Any, new: Any) -> Iterator[Change]:
    for key, each in settings_of(type(old)).items():
        before, after = getattr(old, each.name), getattr(new, each.name)
        if before != after:
            yield Change(f"{place} {key}", before, after, live=each.metadata["live"])


def _of_principal(
    place: str, old: PrincipalSettings | None, new: PrincipalSettings | None
) -> Iterator[Change]:
    if old and new:
        yield from _differences(place, old, new)
    else:
        yield Change(place, bool(old), bool(new), live=True)


def _shown(value: Any) -> str:
    return "nothing" if value in (None, ()) else as_toml(value)
