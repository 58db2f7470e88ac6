"""When a schedule runs: intervals, cron expressions where the clocks change, and what was missed."""

import math
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq_broker.job import MOST_RUNS, Misfire, Timetable, plan
from sluicemq_broker.job.timetable import LATE, MOST_SKIPPED
from sluicemq_broker.queues.schedules import run_id

YEAR = 366 * 86400.0
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kolkata",
]
zones = st.sampled_from(ZONES)
moments = st.floats(1.6e9, 2.0e9).map(lambda when: math.floor(when * 1000) / 1000)
#: Of each kind: set times, steps, hours, week days, the last of a month.
expressions = st.sampled_from(
    ["30 2 * * *", "*/15 * * * *", "0 * * * *", "* 2 * * *", "5 1,2,3 * * *", "0 0 1 * *", "0 9 * * MON-FRI",
     "59 23 L * *", "0 12 29 2 *", "*/7 */5 * * *", "0 0 * * 7#1"],
)  # fmt: skip
timetables = st.one_of(
    st.tuples(expressions, zones).map(lambda both: Timetable(*both)),
    st.builds(
        lambda every, begins: Timetable(every=every, begins_at=begins),
        st.floats(1.0, 1e6).map(lambda every: math.floor(every * 1000) / 1000),
        moments,
    ),
)


def at(zone: str, text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def local(zone: str, when: float) -> str:
    return datetime.fromtimestamp(when, ZoneInfo(zone)).strftime("%m-%d %H:%M")


@pytest.mark.parametrize(
    ("name", "expression"),
    [("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@hourly", "0 * * * *"), ("@weekly", "0 0 * * 0"),
     ("@monthly", "0 0 1 * *"), ("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *")],
)  # fmt: skip
def test_a_name_is_the_expression_that_it_stands_for(name: str, expression: str) -> None:
    named, spelt = Timetable(name, "Europe/Berlin"), Timetable(expression, "Europe/Berlin")
    named.check()
    begin = at("UTC", "2031-03-29 12:00")
    assert named.until(named.after(begin), begin + YEAR, 5) == spelt.until(
        spelt.after(begin), begin + YEAR, 5
    )
    assert named.cron == name  # as it is listed


@pytest.mark.parametrize("cron", ["@reboot", "@every 5m", "@Daily", "@"])
def test_another_name_is_refused_with_those_that_are_known(cron: str) -> None:
    with pytest.raises(ValueError, match=r"@yearly, .*@hourly"):
        Timetable(cron).check()


@pytest.mark.parametrize(
    "cron", ["*/60 * * * *", "*/61 * * * *", "5/61 * * * *", "0 */24 * * *", "0 0 */31 * *", "0 0 1 */12 *",
             "0 0 * * */8", "1,*/99 * * * *"],
)  # fmt: skip
def test_a_step_that_its_field_never_makes_is_refused(cron: str) -> None:
    with pytest.raises(ValueError, match="goes beyond"):
        Timetable(cron).check()
    Timetable("*/59 */23 */30 */11 */7").check()


@pytest.mark.parametrize(
    "zone",
    ["", "localtime", "/etc/localtime", "../UTC", "posixrules", "right/UTC", "posix/Europe/Berlin", "Factory",
     "europe/berlin", "utc", "Europe", "Mars/Base", "\ud800", "CEST", "GMT+5"],
)  # fmt: skip
def test_a_zone_that_is_not_the_same_on_every_machine_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match=r"timezone is .*like Europe/Berlin or UTC"):
        Timetable("0 0 * * *", zone).check()
    assert "timezone is" in Timetable("0 0 * * *", zone).problem
    assert not Timetable("0 0 * * *", "UTC").problem


@pytest.mark.parametrize("every", [math.nan, math.inf, -math.inf, -1.0, 1e308, 0.5, 1e-320, 3.2e8, 1.00001])
def test_an_interval_that_is_none_is_refused(every: float) -> None:
    with pytest.raises(ValueError, match="every"):
        Timetable(every=every).check()


@settings(deadline=None)
@given(timetable=timetables, when=moments)
def test_each_run_comes_after_the_one_before_and_none_lies_between(timetable: Timetable, when: float) -> None:
    timetable.check()
    first = timetable.after(when)
    second = timetable.after(first)
    assert when < first < second
    assert timetable.after(first - 0.001) == pytest.approx(first, abs=0.0001)
    if first - when > 0.002:  # times are whole milliseconds
        assert timetable.after((when + first) / 2) == pytest.approx(first, abs=0.001)
    assert timetable.after((first + second) / 2) == pytest.approx(second, abs=0.001)


@settings(deadline=None, max_examples=300)
@given(
    zone=zones,
    day=st.dates(date(2020, 1, 1), date(2030, 1, 1)),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
def test_what_has_a_set_time_runs_once_each_day(zone: str, day: date, hour: int, minute: int) -> None:
    timetable = Timetable(f"{minute} {hour} * * *", zone)
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    runs = timetable.until(
        timetable.after(midnight.timestamp() - 0.001), midnight.timestamp() + 8 * 86400, 20
    )
    days = [datetime.fromtimestamp(run, ZoneInfo(zone)).date() for run in runs]
    assert days[:7] == [midnight.date() + timedelta(days=number) for number in range(7)]


def test_where_the_clocks_change_a_run_is_neither_left_out_nor_repeated() -> None:
    daily = Timetable("30 2 * * *", "Europe/Berlin")
    spring = daily.until(daily.after(at("Europe/Berlin", "2026-03-28")), at("Europe/Berlin", "2026-03-31"), 9)
    assert [local("Europe/Berlin", run) for run in spring] == ["03-28 02:30", "03-29 03:00", "03-30 02:30"]
    autumn = daily.until(daily.after(at("Europe/Berlin", "2026-10-24")), at("Europe/Berlin", "2026-10-27"), 9)
    assert [local("Europe/Berlin", run) for run in autumn] == ["10-24 02:30", "10-25 02:30", "10-26 02:30"]
    assert autumn[1] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()  # the first of the two


def test_inside_the_second_of_two_hours_the_next_run_is_tomorrows() -> None:
    daily = Timetable("30 2 * * *", "Europe/Berlin")
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp()  # 02:10 for the second time
    assert local("Europe/Berlin", daily.after(second)) == "10-26 02:30"


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_hourly_runs_are_an_hour_apart_where_the_clocks_change_too(day: str) -> None:
    hourly = Timetable("0 * * * *", "Europe/Berlin")
    first = hourly.after(at("Europe/Berlin", day))
    runs = hourly.until(first, first + 6 * 3600, 99)
    assert {later - sooner for sooner, later in pairwise(runs)} == {3600.0}


def test_an_interval_keeps_its_beat_whenever_it_is_looked_at() -> None:
    every = Timetable(every=10.0, begins_at=1000.0)
    assert every.after(0.0) == 1000.0
    assert [every.after(when) for when in (1000.0, 1003.0, 1009.999, 1010.0)] == [1010.0, 1010, 1010, 1020]


@settings(deadline=None)
@given(
    timetable=timetables, begins=moments, late=st.floats(0.0, 40 * 86400.0), misfire=st.sampled_from(Misfire)
)
def test_a_plan_pushes_what_its_policy_says_and_goes_on_behind_it(
    timetable: Timetable, begins: float, late: float, misfire: Misfire
) -> None:
    due = timetable.after(begins)
    now = round(due + late, 3)  # as the server's clock has it
    planned = plan(timetable, due, now, misfire)
    assert planned.next_at > max([due, *planned.runs])
    assert all(due - 0.001 <= run <= now + 0.0005 for run in planned.runs)
    if misfire is Misfire.ALL:
        assert planned.runs[0] == due
        assert len(planned.runs) == MOST_RUNS or planned.next_at > now
    else:
        assert planned.next_at > now
        last = timetable.last_until(due, now)
        assert planned.runs == ([] if misfire is Misfire.SKIP and now - last > LATE else [last])


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [(Misfire.SKIP, []), (Misfire.ONE, [3600.0 * 5]), (Misfire.ALL, [3600.0 * n for n in range(1, 6)])],
)
def test_runs_of_five_hours_without_a_broker(misfire: Misfire, expected: list[float]) -> None:
    for hourly in (Timetable("0 * * * *"), Timetable(every=3600.0)):
        planned = plan(hourly, 3600.0, 5.5 * 3600, misfire)
        assert planned == (expected, 6 * 3600.0, 5 - len(expected))


@pytest.mark.parametrize("misfire", Misfire)
def test_a_run_that_is_a_moment_late_is_not_missed(misfire: Misfire) -> None:
    assert plan(Timetable("0 * * * *"), 3600.0, 3600.0 + LATE, misfire).runs == [3600.0]


def test_of_very_many_missed_runs_some_are_counted_as_skipped() -> None:
    assert plan(Timetable("* * * * *"), 0.0, 365 * 86400.0, Misfire.ONE).skipped == MOST_SKIPPED
    assert plan(Timetable(every=1.0), 0.0, 365 * 86400.0, Misfire.ONE).skipped == 365 * 86400


def test_the_job_of_a_run_is_called_by_its_moment() -> None:
    assert [run_id("report", when) for when in (1e9, 1e9 + 0.5)] == [
        "report@2001-09-09T01:46:40Z",
        "report@2001-09-09T01:46:40.500Z",
    ]


def test_nothing_runs_before_its_time() -> None:
    assert plan(Timetable("0 * * * *"), 3600.0, 3599.999, Misfire.ONE) == ([], 3600.0, 0)


def test_all_that_was_missed_comes_in_parts() -> None:
    minutely, due, runs = Timetable("* * * * *"), 60.0, list[float]()
    while due <= 86400.0:
        part, due, _ = plan(minutely, due, 86400.0, Misfire.ALL)
        assert len(part) <= MOST_RUNS
        runs += part
    assert runs == [60.0 * number for number in range(1, 1441)]


@pytest.mark.parametrize(
    ("timetable", "message"),
    [
        (Timetable(), "either cron or every"),
        (Timetable("* * * * *", every=5.0), "either cron or every"),
        (Timetable(every=0.5), "every is 0.5"),
        (Timetable(every=1.2345), "whole milliseconds"),
        (Timetable("* * * *"), "5 fields"),
        (Timetable("* * * * * *"), "5 fields"),
        (Timetable("61 * * * *"), "Bad minute"),
        (Timetable("0 0 31 2 *"), "day-of-month"),
        (Timetable("0 0 * * *", "Europe/Berln"), "timezone is 'Europe/Berln'"),
        (Timetable("0 0 * * *", "../etc/passwd"), "timezone is"),
    ],
)
def test_what_can_not_be_is_refused_with_words(timetable: Timetable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timetable.check()
