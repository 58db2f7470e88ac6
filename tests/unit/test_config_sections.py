"""Each kind of table of the configuration: what a reload tells of it, what it takes over, how it is shown."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from functools import reduce
from typing import Any

import pytest

from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config import (
    Change,
    Config,
    PrincipalSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    StreamSettings,
    as_json,
    changes,
    describe,
    settings_of,
    taken_over,
)
from sluicemq_broker.config.declared import is_live
from sluicemq_broker.config.sections import OTHERS, SECTIONS, Section

#: One table of each kind, as a file may have them.
CONFIG = replace(
    Config.default(),
    queues={"one": QueueSettings()},
    streams={"one": StreamSettings()},
    routes=(RouteSettings(stream="prices", queue="mail"), RouteSettings(stream="news", queue="mail")),
    schedules={"one": ScheduleSettings(queue="mail", every=1.0)},
    principals={"one": PrincipalSettings(permissions=Permissions.all())},
)
#: A value that no setting has, and a device takes for the addresses of its doors, too.
OTHER: Any = "another value"
#: Tables by the attribute that holds them, and the key or number of each there.
Table = tuple[str, Any]


def tables(config: Config) -> dict[str, Table]:
    """Return where each table of a configuration is held, by its place as a reload names it."""
    found: dict[str, Table] = {}
    for section in SECTIONS:
        held, name = getattr(config, section.attribute), section.name
        if section.others:
            found[f'[{name}."*"]'] = section.others, None
        if isinstance(held, Mapping):
            found |= {f"[{name}.{key}]": (section.attribute, key) for key in held}
        elif isinstance(held, tuple):
            found |= {f"[[{name}]] no. {at + 1}": (section.attribute, at) for at in range(len(held))}
        else:
            found[f"[{name}]"] = section.attribute, None
    return found


def settings_at(config: Config, table: Table) -> Any:
    held = getattr(config, table[0])
    return held if table[1] is None else held[table[1]]


def with_value(config: Config, table: Table, attribute: str, value: Any) -> Config:
    """Return a configuration of which one setting is another."""
    held, settings = getattr(config, table[0]), replace(settings_at(config, table), **{attribute: value})
    if isinstance(held, Mapping):
        settings = {**held, table[1]: settings}
    elif isinstance(held, tuple):
        settings = (*held[: table[1]], settings, *held[table[1] + 1 :])
    return with_part(config, table[0], settings)


def with_part(config: Config, attribute: str, value: Any) -> Config:
    return replace(config, **{attribute: value})


TABLES = tables(CONFIG)
SETTINGS = [
    pytest.param(place, key, case, id=f"{place} {key}")
    for place, table in TABLES.items()
    for key, case in settings_of(type(settings_at(CONFIG, table))).items()
]
NAMED = [section for section in SECTIONS if isinstance(getattr(CONFIG, section.attribute), Mapping)]
LISTED = [section for section in SECTIONS if isinstance(getattr(CONFIG, section.attribute), tuple)]


def of(sections: list[Section]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("section", sections, ids=[section.name for section in sections])


def test_each_part_of_the_configuration_belongs_to_a_section() -> None:
    held = {section.attribute for section in SECTIONS} | {
        section.others for section in SECTIONS if section.others
    }
    assert held == {field.name for field in fields(Config) if field.compare}


@pytest.mark.parametrize(("place", "key", "setting"), SETTINGS)
def test_another_value_is_told_and_taken_where_it_is_live(place: str, key: str, setting: Field[Any]) -> None:
    table, name = TABLES[place], setting.name
    before, new = getattr(settings_at(CONFIG, table), name), with_value(CONFIG, table, name, OTHER)
    found, taken = changes(CONFIG, new), taken_over(CONFIG, new)
    assert found == [Change(f"{place} {key}", before, OTHER, live=is_live(setting, before, OTHER))]
    assert taken == (new if found[0].live else CONFIG)


@of([setting for setting in NAMED if setting.others])
def test_a_new_table_of_a_name_is_told_by_its_differences_from_that_of_all(section: Section) -> None:
    common = replace(section.of(CONFIG)[OTHERS], max_bytes=7)
    old = with_part(CONFIG, section.others, common)
    named = getattr(CONFIG, section.attribute)
    new = with_part(old, section.attribute, {**named, "new": replace(common, max_bytes=8)})
    for one, other, before, after in ((old, new, 7, 8), (new, old, 8, 7)):
        (change,) = changes(one, other)
        assert change[:3] == (f"[{section.name}.new] max_bytes", before, after)
        taken = section.of(taken_over(one, other))
        assert taken.get("new", taken[OTHERS]).max_bytes == (after if change.live else before)


@of([setting for setting in NAMED if not setting.others])
def test_a_table_that_is_added_or_removed_is_told(section: Section) -> None:
    (settings,) = section.of(CONFIG).values()
    more = with_part(CONFIG, section.attribute, {"one": settings, "new": settings})
    for old, new, after in ((CONFIG, more, True), (more, CONFIG, False)):
        assert changes(old, new) == [Change(f"[{section.name}.new]", not after, after, section.live)]
        assert taken_over(old, new) == (new if section.live else old)


@of(LISTED)
def test_a_list_with_more_or_fewer_tables_is_told(section: Section) -> None:
    listed = section.of(CONFIG)
    fewer = with_part(CONFIG, section.attribute, listed[:-1])
    for old, new in ((CONFIG, fewer), (fewer, CONFIG)):
        counts = len(section.of(old)), len(section.of(new))
        assert changes(old, new) == [Change(f"number of [[{section.name}]]", *counts, live=False)]
        assert taken_over(old, new) == old


def test_all_tables_are_shown_as_toml_and_as_json() -> None:
    shown, as_values = tomllib.loads(describe(CONFIG)), as_json(CONFIG)

    assert shown.keys() == as_values.keys() == {known.name for known in SECTIONS if "." not in known.name}
    for section in SECTIONS:
        held, path = section.of(CONFIG), section.name.split(".")
        in_toml, in_json = (reduce(dict.__getitem__, path, values) for values in (shown, as_values))
        if isinstance(held, Mapping):
            assert list(in_toml) == list(in_json) == list(held)
        elif isinstance(held, tuple):
            assert len(in_toml) == len(in_json) == len(held)
        else:
            assert in_toml.keys() <= in_json.keys() >= settings_of(type(held)).keys()
