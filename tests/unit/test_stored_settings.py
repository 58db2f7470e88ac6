"""Settings of queues in MongoDB: which values are taken, and how they lie over those of a file."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.rows import plain as row_plain
from sluicemq_broker.config import (
    Layer,
    QueueSettings,
    SettingOrigin,
    explained,
    settings_of,
    stored_value,
    with_stored,
)
from sluicemq_broker.config.display import plain
from sluicemq_broker.config.stored_settings import MOST_STORED

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
