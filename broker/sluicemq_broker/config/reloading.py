"""Changes that a running broker takes over when it reads its file again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sluicemq_broker.config.declared import is_live, settings_of
from sluicemq_broker.config.device_settings import DeviceSettings
from sluicemq_broker.config.display import as_toml
from sluicemq_broker.config.door_settings import DoorSettings, own_settings, with_settings
from sluicemq_broker.config.loading import Config
from sluicemq_broker.config.sections import OTHERS, SECTIONS, Section
from sluicemq_broker.config.settings import QueueSettings
from sluicemq_devices.sockets import Endpoint


class Change(NamedTuple):
    """A value that differs: its place, before and after; ``live``: a running broker takes it over."""

    place: str
    before: Any
    after: Any
    live: bool

    def __str__(self) -> str:
        before, after = (_printable(value) for value in (self.before, self.after))
        change = "another one" if before == after else f"{before} -> {after}"  # equal without passwords
        return f"{self.place}: {change}"


def changes(old: Config, new: Config) -> list[Change]:
    """Return all values that differ, table by table."""
    return [
        change for section in SECTIONS for change in _of_section(section, section.of(old), section.of(new))
    ]


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
        devices=tuple(
            _merged(device, other) if other else device for device, other in _pairs(old.devices, new.devices)
        ),
        security=_merged(old.security, new.security),
        principals=new.principals,
    )


def _merged(old: Any, new: Any) -> Any:
    """Return a table with the live values of another one, also with those of its doors."""
    values = {}
    for setting in settings_of(type(old)).values():
        before, after = getattr(old, setting.name), getattr(new, setting.name)
        if is_live(setting, before, after):
            values[setting.name] = after
        elif before != after and (doors := _same_doors(before, after)):
            merged = tuple(with_settings(one, _merged(*_tables(one, other))) for one, other in doors)
            values[setting.name] = merged if isinstance(before, tuple) else merged[0]
    return replace(old, **values)


def _of_section(section: Section, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Mapping):
        for name in dict.fromkeys((*old, *new)):
            place = f"[{section.name}.{name}]" if name != OTHERS else f'[{section.name}."{name}"]'
            settings = (tables.get(name, tables.get(OTHERS)) for tables in (old, new))
            yield from _of_named(place, *settings, live=section.live)
    elif isinstance(old, tuple):
        yield from _of_list(section.name, old, new)
    else:
        yield from _differences(f"[{section.name}]", old, new)


def _of_named(place: str, old: Any, new: Any, *, live: bool) -> Iterator[Change]:
    if old and new:
        yield from _differences(place, old, new)
    else:
        yield Change(place, bool(old), bool(new), live)


def _of_list(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    if len(old) != len(new):
        yield Change(f"number of [[{name}]]", len(old), len(new), live=False)
    pairs = _pairs(old, new) if name == "devices" else zip(old, new, strict=False)
    for number, (one, other) in enumerate(pairs, 1):
        place = f"[[{name}]] no. {number}"
        if other:
            yield from _differences(place, one, other)
        elif number <= len(new):  # its doors are others: nothing of it is taken over
            for change in _differences(place, one, new[number - 1]):
                yield change._replace(live=False)


def _differences(place: str, old: Any, new: Any) -> Iterator[Change]:
    for key, setting in settings_of(type(old)).items():
        before, after = getattr(old, setting.name), getattr(new, setting.name)
        if before == after:
            continue
        if doors := _same_doors(before, after):
            for one, other in doors:
                yield from _differences(f"{place} {key} {one}", *_tables(one, other))
        else:
            yield Change(f"{place} {key}", before, after, live=is_live(setting, before, after))


def _pairs(
    old: Sequence[DeviceSettings], new: Sequence[DeviceSettings]
) -> Iterator[tuple[DeviceSettings, DeviceSettings | None]]:
    """Yield each device with the one that has its doors now, wherever in the file; None: none has."""
    rest = list(new)
    for device in old:
        other = next((other for other in rest if _place_of(other) == _place_of(device)), None)
        if other:
            rest.remove(other)
        yield device, other


def _place_of(device: DeviceSettings) -> list[Any]:
    """Return the kind of a device and the addresses of its doors."""
    ends = (device.frontends, device.backends, device.commits, device.replays)
    return [device.kind, *([str(end) for end in side] for side in ends)]


def _same_doors(before: Any, after: Any) -> list[tuple[Endpoint, Endpoint]]:
    """Return the doors of a setting, each before and after; none if they are others, or no doors."""
    one, other = (value if isinstance(value, tuple) else (value,) for value in (before, after))
    is_same = all(isinstance(end, Endpoint) for end in (*one, *other)) and [*map(str, one)] == [
        *map(str, other)
    ]
    return list(zip(one, other, strict=True)) if is_same else []


def _tables(one: Endpoint, other: Endpoint) -> tuple[DoorSettings, DoorSettings]:
    return own_settings(one), own_settings(other)


def _printable(value: Any) -> str:
    return "nothing" if value in (None, ()) else as_toml(value)
