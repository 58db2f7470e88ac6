"""Where reading a stream begins: what is sent for it, and what is no start."""

from datetime import UTC, datetime
from typing import Any

import pytest

from clients.scripted_broker import ScriptedBroker
from sluicemq.protocol import wire
from sluicemq.reader import Reader
from sluicemq.start import NEWEST, Start, options_of_read, start_behind, watermark_of
from sluicemq.subscription import Subscription

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "options", "shown"),
    [
        (Start.oldest(), {"after": 0}, "Start.oldest()"),
        (Start.at(1), {"after": 0}, "Start.at(1)"),
        (Start.at(8), {"after": 7}, "Start.at(8)"),
        (Start.new(), {"new": True}, "Start.new()"),
        (Start.since(7.5), {"since": 7.5}, "Start.since(7.5)"),
        (Start.since(NOON), {"since": NOON.timestamp()}, f"Start.since({NOON.timestamp()})"),
        (
            Start.since("2030-01-31T12:00:00Z"),
            {"since": NOON.timestamp()},
            f"Start.since({NOON.timestamp()})",
        ),
    ],
)
def test_a_start_is_sent_as_an_option_of_read(start: Start, options: dict[str, Any], shown: str) -> None:
    assert options_of_read(start) == options
    assert repr(start) == shown


@pytest.mark.parametrize("watermark", [NEWEST, 0, 1, 7])
def test_a_number_of_0_3_is_the_start_behind_it(watermark: int) -> None:
    start = start_behind(watermark)
    assert start is not None
    assert watermark_of(start) == watermark


def test_the_watermark_of_a_time_is_asked_for() -> None:
    start = Start.since(7)
    assert watermark_of(start, lambda given: 41 if given is start else 0) == 41
    with pytest.raises(ValueError, match=r"Start.since\(7.0\) is not possible here: give Start.oldest\(\)"):
        watermark_of(start)


def test_equal_starts_are_one_key() -> None:
    assert {Start.at(7), Start.at(7), Start.new(), Start.oldest()} == {
        Start.new(),
        Start.at(7),
        Start.oldest(),
    }
    assert Start.at(7) != 7


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda: Start.at(0), ValueError, "sequence is 0: give the number of a message, from 1 on"),
        (lambda: Start.at("7"), TypeError, "sequence is an int, not str"),  # type: ignore[arg-type]
        (lambda: Start.since(float("nan")), ValueError, "time is nan, expected Unix seconds or RFC 3339"),
        (lambda: Start.since(datetime(2030, 1, 1)), ValueError, "expected a time zone"),  # noqa: DTZ001
        (Start, TypeError, r"write Start.oldest\(\), Start.new\(\)"),
        (lambda: Reader("s", start=7), TypeError, r"start is a Start, such as Start.new\(\) or .*, not 7"),  # type: ignore[arg-type]
        (
            lambda: Subscription("s", "n", lambda _batch: None, restart="x"),  # type: ignore[arg-type]
            TypeError,
            "restart is a Start",
        ),
    ],
)
def test_what_is_no_start_is_refused(make: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        make()


def test_a_reader_asks_for_its_start(broker: ScriptedBroker) -> None:
    with Reader("s", start=Start.at(8), endpoint=broker.endpoint):
        assert broker.wait_for(wire.READ)[0].fields[1]["after"] == 7
