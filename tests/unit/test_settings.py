"""Settings by section, in MongoDB, and of other brokers: what holds, what differs, what is refused."""

from __future__ import annotations

import json
import math
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rows import plain as row_plain
from sluicemq_broker.command import addresses
from sluicemq_broker.config import (
    Change,
    Config,
    Layer,
    PrincipalSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    SettingOrigin,
    StreamSettings,
    as_json,
    changes,
    describe,
    explained,
    load,
    settings_of,
    stored_value,
    taken_over,
    with_stored,
)
from sluicemq_broker.config.declared import is_live
from sluicemq_broker.config.display import plain
from sluicemq_broker.config.sections import OTHERS, SECTIONS, Section
from sluicemq_broker.config.stored_settings import MOST_STORED
from sluicemq_broker.queues import Difference, differences
from sluicemq_broker.queues.records import QueueRecords
from sluicemq_broker.queues.settings import SharedSettings
from sluicemq_broker.store import QueueRecord
from support.ports import tcp

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


FILE = QueueSettings(max_attempts=9, ttl=60.0)


def stored(**values: Any) -> Layer:
    return Layer(SettingOrigin.MONGODB, {key: stored_value(key, value) for key, value in values.items()})


def test_a_value_is_read_as_in_a_file_or_as_on_a_command_line() -> None:
    numbers = stored(max_running=5, rate="2.5", ttl="1h", weights="acme=3, bolt=2")
    settings = with_stored(QueueSettings(), numbers, stored(fair="true", backoff="none", overflow="hold"))
    assert (settings.max_running, settings.rate, settings.ttl, settings.fair) == (5, 2.5, 3600.0, True)
    assert (settings.weights, settings.backoff, settings.overflow) == ({"acme": 3, "bolt": 2}, "none", "hold")


@pytest.mark.parametrize("nothing", [None, "none", " NONE "])
def test_a_setting_that_need_not_have_a_value_can_have_none(nothing: Any) -> None:
    assert with_stored(FILE, stored(ttl=nothing)).ttl is None
    with pytest.raises(ValueError, match="max_attempts: expected"):
        stored_value("max_attempts", nothing)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("max_atempts", 1, "max_atempts: unknown key; did you mean max_attempts"),
        ("database", "other", "database can't change while brokers run: give it in the file of each"),
        ("max_running", 0, "max_running: expected"),
        ("max_running", 2**63, "max_running: expected"),
        ("max_running", "five", "max_running: expected"),
        ("rate", math.nan, "rate: expected"),
        ("rate", "inf", "rate: expected"),
        ("fair", 1, "fair: expected true or false"),
        ("ttl", True, "ttl: expected"),
        ("backoff", ["none"], "backoff: expected"),
        ("weights", {"a": 0}, "weights: expected"),
        ("weights", "a", "weights: expected"),
        ("on_dead", "no queue", "on_dead: expected"),
        ("on_dead", b"mail", "on_dead: expected"),
        ("weights", {str(n): 1 for n in range(20_000)}, f"{MOST_STORED} are possible"),
    ],
)
def test_other_values_are_refused_with_what_is_expected(key: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        stored_value(key, value)
    assert len(str(refused.value)) < 600


@given(
    key=st.one_of(st.sampled_from(list(settings_of(QueueSettings))), st.text(max_size=20)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_whatever_is_said_is_refused_or_is_read_again_as_it_was(key: str, value: Any) -> None:
    try:
        text = stored_value(key, value)
    except ValueError:
        return
    read = with_stored(QueueSettings(), Layer(SettingOrigin.MONGODB, {key: text}))
    assert json.loads(text) == plain(getattr(read, settings_of(QueueSettings)[key].name))
    assert stored_value(key, json.loads(text)) == text


def test_what_a_broker_can_not_use_is_left_out() -> None:
    layer = Layer(
        SettingOrigin.MONGODB,
        {"new_in_4": "1", "database": '"x"', "ttl": "[", "rate": "{}", "fair": '"yes"', "max_running": "7"},
    )
    assert with_stored(FILE, layer) == with_stored(FILE, stored(max_running=7))


def test_each_setting_is_explained_by_where_it_is_from() -> None:
    of_all = Layer(SettingOrigin.MONGODB_ALL, {"max_attempts": "3", "max_running": "7"})
    rows = {setting.key: row_plain(setting) for setting in explained(FILE, of_all, stored(max_running=8))}
    assert rows.keys() == settings_of(QueueSettings).keys()
    assert rows["max_attempts"] == {"key": "max_attempts", "value": 3, "source": "mongodb *", "file": 9}
    assert rows["max_running"] == {"key": "max_running", "value": 8, "source": "mongodb", "file": None}
    assert rows["ttl"] == {"key": "ttl", "value": 60.0, "source": "file"}
    assert rows["rate"] == {"key": "rate", "value": None, "source": "default"}


SHARED_FILE = {
    "limited": QueueSettings(fair=True, tenant_max_running=2),
    "first": QueueSettings(on_dead="second"),
}


class Records(dict[str, dict[str, object]]):
    """What is stored of each queue."""

    def of(self, _database: str, queue: str) -> QueueRecord:
        stored = {key: stored_value(key, value) for key, value in self.get(queue, {}).items()}
        return QueueRecord(name=queue, settings=stored)


def settings(records: Records) -> SharedSettings:
    return SharedSettings(replace(Config.default(), queues=SHARED_FILE), cast("QueueRecords", records))


def test_a_queue_that_would_close_a_circle_of_dead_letters_goes_by_the_file() -> None:
    stored = settings(Records(second={"on_dead": "first"}))
    assert stored.of("second").on_dead is None
    assert stored.of("first").on_dead == "second"


def test_another_problem_of_a_queue_takes_no_stored_on_dead_from_it() -> None:
    stored = settings(Records(limited={"fair": False, "on_dead": "failed"}))
    assert stored.of("limited").on_dead == "failed"


ALIKE: dict[str, Any] = {"*": {"max_attempts": 7}, "mail": {"max_attempts": 7, "ttl": 60.0}}


def found(**files: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(difference.queue, difference.key, dict(difference.values)) for difference in differences(files)]


def test_files_that_say_one_thing_do_not_differ() -> None:
    assert found(a=ALIKE, b=dict(ALIKE), c={"mail": ALIKE["mail"], "*": ALIKE["*"]}) == []
    assert found(a=ALIKE) == []


@pytest.mark.parametrize(
    ("other", "key", "theirs"),
    [
        ({**ALIKE, "mail": {"max_attempts": 7}}, ("mail", "ttl"), None),  # the default
        ({"*": {"max_attempts": 7}}, ("mail", "ttl"), None),  # what holds for all
        ({"*": {}, "mail": {"ttl": 60.0}}, ("*", "max_attempts"), 13),  # of all queues it is said once
        ({"*": {"max_attempts": 7, "new": 1}, "mail": ALIKE["mail"]}, ("*", "new"), 1),  # of another version
    ],
)
def test_what_differs_is_told_with_the_value_of_each(other: Any, key: tuple[str, str], theirs: Any) -> None:
    ours = {**ALIKE["*"], **ALIKE["mail"]}.get(key[1])
    assert found(a=ALIKE, b=other) == [(*key, {"a": ours, "b": theirs})]


def test_ten_thousand_queues_of_which_one_differs() -> None:
    many = {"*": {}, **{f"q{number}": {"ttl": float(number + 1)} for number in range(10_000)}}
    assert found(a=many, b={**many, "q5": {"ttl": 1.0}}) == [("q5", "ttl", {"a": 6.0, "b": 1.0})]


def test_a_difference_is_shown_with_the_brokers_of_each_value() -> None:
    values = {"a:1": 5, "b:2": None, "c:3": 5}
    assert str(Difference("mail", "max_running", values)) == "max_running: 5 at a:1 and c:3, none at b:2"


def config(folder: Path, endpoint: str, **ends: str) -> Config:
    """A broker with one streamer."""
    device = {"kind": "streamer", "frontend": tcp(), "backend": tcp(), **ends}
    file = folder / "broker.toml"
    broker = {"endpoint": endpoint, "http": "", "data_dir": str(folder / "my data")}
    file.write_text(tomli_w.dumps({"broker": broker, "devices": [device]}))
    return load(file, {}, {})


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield tcp(listener.getsockname()[1])


def test_a_door_that_is_taken_is_named_with_what_to_do(tmp_path: Path, taken: str) -> None:
    text = (
        f"{taken} is taken, perhaps by another broker; a second broker on this machine starts with "
        r"--ports 6550 --data-dir '.*/my data-6550', and with addresses of its own in \[\[devices\]\]"
    )
    for wrong in (config(tmp_path, taken), config(tmp_path, tcp(), backend=taken)):
        with pytest.raises(UnavailableError, match=text):
            addresses.require_free(wrong)


def test_who_has_the_default_doors_and_a_mongodb_is_told_of_ports_alone(taken: str) -> None:
    flags = {"ports": "60100", "http": taken.removeprefix("tcp://"), "mongodb_uri": "mongodb://db/"}
    with pytest.raises(UnavailableError, match=r"on this machine starts with --ports 59100$"):
        addresses.require_free(load(None, {}, flags))


def test_a_unix_socket_is_taken_only_while_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "door"
    wanted = config(tmp_path, tcp(), frontend=f"ipc://{path}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(UnavailableError, match="is taken"):
            addresses.require_free(wanted)
    addresses.require_free(wanted)


def test_doors_that_are_free_or_that_connect_are_fine(tmp_path: Path, taken: str) -> None:
    addresses.require_free(config(tmp_path, tcp(), frontend=f">{taken}", backend="tcp://127.0.0.1:0"))


def test_an_address_of_the_environment_is_named_with_its_variable() -> None:
    environ = {"SLUICEMQ_ENDPOINT": "tcp://192.0.2.1:5550", "SLUICEMQ_DEVICES": "off", "SLUICEMQ_HTTP": ""}
    with pytest.raises(
        UnavailableError, match=r"192\.0\.2\.1:5550 \(of SLUICEMQ_ENDPOINT\) is no address of"
    ):
        addresses.require_free(load(None, environ, {}))
