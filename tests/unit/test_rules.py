"""What a value may be, by one set of rules: spans of time as people write them, numbers, words, moments."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner

from sluicemq.cli.app import app
from sluicemq.protocol import job_headers
from sluicemq.protocol.durations import in_seconds, seconds_of
from sluicemq.protocol.errors import BadFramesError, BadHeadersError
from sluicemq.protocol.options import OPTIONS
from sluicemq_broker.config import (
    BrokerSettings,
    ConfigError,
    QueueSettings,
    StreamSettings,
    load,
    rules,
    settings_of,
)
from sluicemq_broker.doors.worker_frames import commit_frames
from sluicemq_broker.queue import check_headers

#: Where there are texts only, as on a command line, a number alone is seconds.
NUMBERS = {"0": 0.0, "10": 10.0, "1.5": 1.5, ".5": 0.5, "1e3": 1000.0, " 7 ": 7.0}
SPANS = {
    "10s": 10.0, "1.5s": 1.5, "250ms": 0.25,
    "5m": 300.0, "1h30m": 5400.0, "1h 30m": 5400.0, "2d": 172_800.0, "1w": 604_800.0, "1d12h": 129_600.0,
    "1h0.5s": 3600.5, " 5m ": 300.0,
}  # fmt: skip
NO_SPANS = [
    "", " ", "s", "5x", "5 m", "30m1h", "1m1m", "1h30", "5M", "1_0", "1,5", "nan", "inf", "infinity",
    "0x10", "five", "5m!", "٣s", "1.s", "\ud800",
]  # fmt: skip
#: No option, and no setting, may be one of these numbers, however they come.
NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, -1, -0.001, 1e308, 10**400, -(10**400), True, False]
DELAY = OPTIONS["delay"].rule
OF_TIME = [option for option in OPTIONS.values() if option.unit == "s"]
WITH_NUMBERS = [
    option for option in OPTIONS.values() if option.rule.bounds != (None, None) or option.name == "not_before"
]


@pytest.mark.parametrize(("text", "seconds"), SPANS.items())
def test_a_span_of_time_is_a_text_with_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == in_seconds(text) == DELAY(text) == DELAY.of_text(text) == seconds


@pytest.mark.parametrize(("text", "seconds"), NUMBERS.items())
def test_a_number_alone_is_seconds_where_there_are_texts_only(text: str, seconds: float) -> None:
    assert DELAY.of_text(text) == seconds
    with pytest.raises(ValueError, match="a text such as 90s"):
        DELAY(text)


@pytest.mark.parametrize("text", NO_SPANS)
def test_a_text_that_is_no_span_of_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 5m, 1h30m or 2d"):
        seconds_of(text)


@pytest.mark.parametrize("option", OF_TIME, ids=lambda option: option.name)
def test_every_option_of_time_is_the_same_at_every_door(option: Any, tmp_path: Path) -> None:
    header = {option.name: "1h30m", **({"dedupe_id": "d"} if option.name == "dedupe_window" else {})}
    assert check_headers(header)[option.name] == 5400.0
    assert option.rule(timedelta(hours=1.5)) == option.rule.of_text("1h30m") == option.rule(5400) == 5400.0
    config = loaded(tmp_path, {"queues": {"a": {option.setting or option.bound: "1h30m"}}})
    assert getattr(config.queue("a"), option.name) == 5400.0
    for wrong in ("1h30", "soon", "99w99w", "9999999w"):
        with pytest.raises(BadHeadersError, match=f"{option.name}.*expected seconds"):
            check_headers({option.name: wrong})


@pytest.mark.parametrize("kind", [BrokerSettings, QueueSettings, StreamSettings])
def test_every_setting_of_time_takes_a_text(kind: Any, tmp_path: Path) -> None:
    table = {BrokerSettings: "broker", QueueSettings: "queues", StreamSettings: "streams"}[kind]
    keys = [key for key, setting in settings_of(kind).items() if setting.metadata["rule"].unit == "s"]
    assert keys
    for key in keys:
        text = "90s" if kind is BrokerSettings else "1h30m"
        other = {"silence": "3m"} if key == "heartbeat" else {}
        values = {key: text, **other}
        config = loaded(tmp_path, {table: values if kind is BrokerSettings else {"a": values}})
        found = config.broker if kind is BrokerSettings else getattr(config, table)["a"]
        assert getattr(found, settings_of(kind)[key].name) == seconds_of(text)


def test_the_environment_and_flags_have_texts_for_all_settings_alike() -> None:
    environ = {"SLUICEMQ_LEASE": "1m", "SLUICEMQ_HWM": " 5 ", "SLUICEMQ_AUTO_CREATE": "off"}
    broker = load(None, environ, {"poll": "250ms", "max_queues": "7"}).broker
    assert (broker.lease, broker.hwm, broker.auto_create) == (60.0, 5, False)
    assert (broker.poll, broker.max_queues) == (0.25, 7)
    for key in ("hwm", "max_queues", "max_job_bytes"):
        for wrong in ("1_0", "5.0", "0x5", "", "five", "9" * 5000):
            with pytest.raises(ConfigError, match="expected a whole number"):
                load(None, {f"SLUICEMQ_{key.upper()}": wrong}, {})


@pytest.mark.parametrize("kind", [BrokerSettings, QueueSettings, StreamSettings])
def test_a_number_or_a_flag_in_quotes_is_a_text_in_toml_for_every_key(kind: Any, tmp_path: Path) -> None:
    """TOML has types: what is in quotes is a text, for all keys alike."""
    table = {BrokerSettings: "broker", QueueSettings: "queues", StreamSettings: "streams"}[kind]
    for key, setting in settings_of(kind).items():
        rule = setting.metadata["rule"]
        if rule.unit != "s" and rule.expected != "true or false" and "number" not in rule.expected:
            continue
        for text in ("true", "yes", "on", "1", "5"):
            values = {key: text}
            with pytest.raises(ConfigError, match=f"{key}: expected"):
                loaded(tmp_path, {table: values if kind is BrokerSettings else {"a": values}})


@pytest.mark.parametrize("option", WITH_NUMBERS, ids=lambda option: option.name)
def test_a_number_that_is_none_is_refused_by_every_rule(option: Any) -> None:
    for number in NO_NUMBERS:
        assert not option.rule.holds(number), number
        with pytest.raises(BadHeadersError, match=f"'{option.name}'"):
            check_headers({option.name: number})


@pytest.mark.parametrize("number", [*NO_NUMBERS, "nan", "1e999", "5x"])
def test_a_number_of_a_backoff_is_as_any_other(number: Any) -> None:
    for name in ("base", "cap", "factor", "jitter"):
        with pytest.raises(BadHeadersError, match="'backoff'"):
            check_headers({"backoff": {name: number}})
    assert check_headers({"backoff": {"base": "5s", "cap": "1h"}}) == {
        "backoff": {"base": 5.0, "cap": 3600.0}
    }


@pytest.mark.parametrize("kind", [BrokerSettings, QueueSettings, StreamSettings])
def test_a_setting_is_no_number_that_is_none(kind: Any) -> None:
    for key, setting in settings_of(kind).items():
        rule = setting.metadata["rule"]
        if "number" in rule.expected or rule.unit == "s":
            for number in NO_NUMBERS:
                assert not rule.holds(number), (key, number)


class Whole:
    """A number as NumPy has them: registered as one, and none of Python's own."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __int__(self) -> int:
        return self._value

    def __float__(self) -> float:
        return float(self._value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", 5), ("host", 5), ("http_address", 5580), ("http_address", "127.0.0.1:no-port"),
        ("http_hosts", [5]), ("secret", 5), ("folder", " "), ("mongodb_uri", 27017), ("event_bus", 5),
        ("event_bus", "mongo"), ("topics", ["orders.", 5]), ("weights", ["acme"]),
        ("job_headers", ["ttl"]), ("schedule_options", "ttl"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_kind_is_refused_with_what_is_expected(name: str, value: object) -> None:
    rule = getattr(rules, name)
    with pytest.raises(ValueError, match=r"\w") as caught:
        rule.read(value)
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith((rule.expected, "a string"))


def test_numbers_that_are_not_pythons_own_are_taken_by_the_library() -> None:
    Integral.register(Whole)
    for rule in (OPTIONS["priority"].rule, OPTIONS["delay"].rule):
        assert rule(Whole(7)) == 7
        assert not rule.holds(Whole(-1))
    assert OPTIONS["delay"].rule(Fraction(1, 2)) == 0.5
    assert not OPTIONS["delay"].rule.holds(Decimal(1))


def test_minus_zero_is_zero_where_zero_may_be() -> None:
    assert OPTIONS["delay"].rule(-0.0) == 0.0
    assert not OPTIONS["ttl"].rule.holds(-0.0)


@pytest.mark.parametrize("delay", [b"nan", b"inf", b"-1", b"1e308", b"1_0", b"\xff", b"", b"soon", b"9999w"])
def test_a_delay_of_a_plain_worker_is_a_span_of_time(delay: bytes) -> None:
    assert commit_frames([b"ROLLBACK", b"r", b"why", b"1h30m"], bool).delay == 5400.0
    with pytest.raises(BadFramesError, match="delay"):
        commit_frames([b"ROLLBACK", b"r", b"why", delay], bool)


def test_a_moment_that_is_none_is_refused_with_an_example() -> None:
    rule = OPTIONS["not_before"].rule
    assert rule(datetime(2030, 1, 1, tzinfo=UTC)) == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    for text in ("tomorrow", "2030-01-01", "2030-01-01T00:00:00", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(BadHeadersError, match="such as 2030-01-31T12:00:00Z"):
            check_headers({"not_before": text})


@pytest.mark.parametrize("before", [b"", b" ", b"\n\t\r ", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_json_headers_may_begin_with_white_space_or_a_byte_order_mark(before: bytes) -> None:
    assert job_headers.decode(before + b'{"priority": 5}') == {"priority": 5}


def test_a_byte_order_mark_in_toml_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(b"\xef\xbb\xbf[broker]\nlease = 20\n")
    assert load(file, {}, {}).broker.lease == 20.0


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["push", "q", "x", flag, "{}"]
            for flag in ("--delay", "--ttl", "--visibility-timeout", "--keep-done")
        ),
        ["push", "q", "x", "--dedupe-id", "d", "--dedupe-window", "{}"],
        ["--timeout", "{}", "ping"],
        ["ping", "--timeout", "{}"],
        ["ping", "--wait", "{}"],
        ["pop", "q", "--wait", "{}"],
        ["result", "q", "id", "--wait", "{}"],
        ["queues", "--watch", "--interval", "{}"],
        ["top", "--interval", "{}"],
        ["events", "--for", "{}"],
        ["stream", "read", "s", "--since", "{}"],
        ["schedule", "add", "n", "q", "x", "--every", "{}"],
        ["change", "q", "id", "--delay", "{}"],
        ["dead", "redrive", "q", "--newer-than", "{}"],
        ["dead", "redrive", "q", "--older-than", "{}"],
        ["dead", "purge", "q", "--yes", "--older-than", "{}"],
        ["bench", "drain", "--duration", "{}"],
    ],
    ids=" ".join,
)
def test_an_option_of_time_on_the_command_line_refuses_what_is_no_span(words: list[str]) -> None:
    for wrong in ("nan", "inf", "-1", "1e308", "soon", "1h30", ""):
        result = CliRunner().invoke(
            app, ["--endpoint", "tcp://127.0.0.1:1", *(word.format(wrong) for word in words)]
        )
        assert (result.exit_code, "expected seconds" in result.stderr) == (2, True), (wrong, result.stderr)


def loaded(folder: Path, document: dict[str, Any]) -> Any:
    file = folder / "broker.toml"
    file.write_text(tomli_w.dumps(document))
    return load(file, {}, {})
