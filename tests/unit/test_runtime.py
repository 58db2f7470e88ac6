"""What the broker's parts stand on: alarms, buckets, deadlines, histograms, memory, JSON."""

from itertools import pairwise
from pathlib import Path
from random import Random

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.process.deadline import Deadline
from sluicemq_broker.runtime import (
    BOUNDS,
    Alarm,
    Bucket,
    Buckets,
    Count,
    Counters,
    Histogram,
    HostMemory,
    QueueCounters,
    Timing,
    host_memory,
    percentile,
    read_json,
)
from support.virtual_time import VirtualTime

BEGIN = 1000.0


class Rings:
    """An alarm, and when it has rung, in seconds from the beginning."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.at: list[float] = []
        self.alarm = Alarm(self.time, lambda: self.at.append(self.time.now() - BEGIN))

    def set(self, seconds: float) -> None:
        self.alarm.set(BEGIN + seconds)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_it_rings_once_at_the_earliest_of_its_times(seconds: list[float]) -> None:
    rings = Rings()
    for second in seconds:
        rings.set(second)
    rings.time.passes(200.0)
    assert rings.at == [pytest.approx(min(seconds), abs=0.002)]


def test_it_can_be_set_again_when_it_has_rung() -> None:
    rings = Rings()
    rings.set(5.0)
    rings.time.passes(10.0)
    rings.set(20.0)
    rings.time.passes(20.0)
    assert rings.at == [5.0, 20.0]


def test_a_time_that_has_passed_is_the_next_turn() -> None:
    rings = Rings()
    rings.set(-5.0)
    rings.time.passes(0.001)
    assert len(rings.at) == 1


def test_many_later_times_cost_one_timer() -> None:
    rings = Rings()
    for number in range(1000):
        rings.set(1.0 + number / 1000)
    assert rings.time.pending == 1


def test_a_time_far_ahead_costs_one_timer_however_often_it_rings_before() -> None:
    rings = Rings()
    for number in range(100):
        rings.set(number + 0.5)
        rings.time.passes(1.0)
        rings.set(3600.0)
    assert len(rings.at) == 100
    assert rings.time.pending == 1


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=20))
def test_it_rings_on_time_after_earlier_times_for_which_it_was_set(seconds: list[float]) -> None:
    rings = Rings()
    for second in seconds:
        rings.set(second)
    rings.time.passes(5.0)
    rung = len(rings.at)
    rings.set(12.0)
    rings.time.passes(30.0)
    assert rung == (min(seconds) <= 5.0)
    expected = 12.0 if rung else min(12.0, *seconds)
    assert rings.at[rung:] == [pytest.approx(expected, abs=0.002)]


def test_it_gives_so_many_at_once_and_then_so_many_a_second() -> None:
    bucket = Bucket(rate=10.0, most=100.0)
    assert [bucket.take(50.0) for _ in range(101)] == [True] * 100 + [False]
    assert [bucket.take(50.5) for _ in range(6)] == [True] * 5 + [False]


def test_it_is_full_again_after_a_rest_and_no_fuller() -> None:
    bucket = Bucket(rate=10.0, most=3.0)
    assert [bucket.take(now) for now in (1.0, 1.0, 1.0, 1.0)] == [True, True, True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_one_key_can_not_use_up_the_tokens_of_another_and_all_together_are_bounded() -> None:
    buckets = Buckets(per_key=(1.0, 2.0), every=(1.0, 4.0))
    assert [buckets.take("a", 5.0) for _ in range(4)] == [True, True, False, False]
    assert [buckets.take("b", 5.0) for _ in range(2)] == [True, True]
    assert not buckets.take("c", 5.0)


def test_a_token_that_was_given_back_can_be_taken_again() -> None:
    buckets = Buckets(per_key=(0.0, 1.0), every=(0.0, 1.0))
    assert buckets.take("a", 5.0)
    buckets.give_back("a")
    assert buckets.take("a", 5.0)


def test_keys_beyond_the_known_ones_are_forgotten() -> None:
    buckets = Buckets(per_key=(0.0, 1.0), every=(0.0, 100.0), known=2)
    for key in ("a", "b", "c"):
        assert buckets.take(key, 5.0)
    assert buckets.take("a", 5.0)
    assert not buckets.take("c", 5.0)


def test_tokens_that_are_not_there_yet_can_be_spent_and_must_come_first() -> None:
    bucket = Bucket(rate=10.0, most=10.0)
    bucket.spend(30.0, 50.0)
    assert bucket.wait(50.0) == 2.0
    assert bucket.wait(51.0) == 1.0
    assert not bucket.take(52.05)
    assert bucket.take(52.2)


def test_a_duration_is_counted_within_the_first_bound_that_it_does_not_pass() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 1e6):
        histogram.observe(seconds)
    within = {bound: count for bound, count in zip((*BOUNDS, "more"), histogram.counts, strict=True) if count}
    assert within == {0.0005: 1, 0.001: 1, 0.0025: 1, "more": 1}
    assert histogram.sum == pytest.approx(1e6 + 0.0021)


@pytest.mark.parametrize("spread", [0.0, 1e-4, 10.0, 1e6])
def test_a_batch_counts_as_its_durations_one_by_one_do(spread: float) -> None:
    random, batch, one_by_one = Random(7), Histogram(), Histogram()
    for start in (0.0, 0.0005, 3.0, 100_000.0):
        durations = [start + spread * random.random() for _ in range(50)]
        batch.observe_all(durations)
        for duration in durations:
            one_by_one.observe(duration)
    assert batch.counts == one_by_one.counts
    assert batch.sum == pytest.approx(one_by_one.sum)


def test_bounds_rise() -> None:
    assert all(low < high for low, high in pairwise(BOUNDS))


def test_what_a_queue_takes_is_counted_and_summed_for_it() -> None:
    broker = Counters()
    mail, thumbs = (QueueCounters(broker, queue=name) for name in ("mail", "thumbs"))
    mail.took(Timing.TIME_IN_QUEUE, [0.5, 1.5])
    thumbs.took(Timing.TIME_AT_WORKER, [0.25])
    thumbs.took(Timing.PUSH_CONFIRMATION, [0.25])
    assert (mail.values[Count.WAITED], thumbs.values[Count.WORKED]) == (2000, 250)
    assert sum(broker.timings_of("mail")[Timing.TIME_IN_QUEUE].counts) == 2
    assert broker.timings_of("thumbs")[Timing.TIME_AT_WORKER].sum == 0.25


def test_what_is_negative_for_a_clock_that_was_set_counts_as_nothing() -> None:
    counters = QueueCounters(Counters())
    counters.took(Timing.TIME_IN_QUEUE, [-5.0, 1.0])
    assert counters.values[Count.WAITED] == 1000


def test_nothing_is_counted_of_an_empty_batch() -> None:
    counters = Counters()
    counters.took(Timing.TIME_IN_QUEUE, [])
    assert sum(counters.timings_of("mail")[Timing.TIME_IN_QUEUE].counts) == 0


def test_a_percentile_lies_within_the_bound_of_its_duration() -> None:
    histogram = Histogram()
    histogram.observe(0.004, 90)
    histogram.observe(0.4, 9)
    histogram.observe(1e6)
    found = [percentile(histogram.counts, share) for share in (0.5, 0.95, 0.999)]
    assert found == [pytest.approx(0.0039, abs=0.0003), pytest.approx(0.389, abs=0.01), BOUNDS[-1]]
    assert percentile(Histogram().counts, 0.5) is None


@pytest.fixture
def deadline() -> Deadline:
    return Deadline()


def never() -> bool:
    return False


def test_what_holds_already_is_not_waited_for(deadline: Deadline) -> None:
    deadline.begin(0.0)
    assert deadline.until(lambda: True)


def test_a_wait_ends_when_its_condition_holds(deadline: Deadline) -> None:
    done: list[bool] = []
    gevent.spawn_later(0.02, done.append, True)  # noqa: FBT003 - anything
    assert deadline.until(lambda: bool(done))


def test_two_waits_one_after_the_other_share_the_deadline(deadline: Deadline) -> None:
    looks: list[object] = []
    deadline.begin(0.1)
    assert not deadline.until(never)
    assert deadline.left == 0.0
    assert not deadline.until(lambda: bool(looks.append(None)))
    assert len(looks) == 1


def test_a_wait_may_end_before_the_deadline(deadline: Deadline) -> None:
    deadline.begin(1000.0)
    assert not deadline.until(never, within=0.02)
    assert deadline.left > 0.0


def test_a_wait_may_be_given_a_moment_after_the_deadline(deadline: Deadline) -> None:
    deadline.begin(0.0)
    done: list[bool] = []
    gevent.spawn_later(0.02, done.append, True)  # noqa: FBT003 - anything
    assert deadline.until(lambda: bool(done), at_least=60.0)
    assert not deadline.until(never, at_least=0.02)


def test_hurry_ends_a_wait_that_is_under_way_and_every_later_one(deadline: Deadline) -> None:
    waiting = [gevent.spawn(deadline.until, never, within=1000.0) for _ in range(2)]
    gevent.idle()
    deadline.hurry()
    gevent.joinall(waiting, timeout=60)
    deadline.begin(1000.0)
    assert [job.value for job in waiting] == [False, False]
    assert not deadline.until(never)


MIB = 2**20
MEMORY = 64_000 * MIB


def machine(root: Path, groups: str, limits: dict[str, str]) -> HostMemory:
    files = {
        "proc/meminfo": f"MemTotal: {MEMORY // 1024} kB\nMemAvailable: {MEMORY // 2048} kB\n",
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()},
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory(root)


@pytest.mark.parametrize(
    ("groups", "limits", "total"),
    [
        ("0::/\n", {}, 64_000),
        ("0::/\n", {"memory.max": "max\n"}, 64_000),
        ("0::/\n", {"memory.max": f"{512 * MIB}\n"}, 512),
        ("0::/system.slice/sluicemq.service\n", {"system.slice/sluicemq.service/memory.max": f"{MIB}"}, 1),
        (
            "0::/a.slice/b.service\n",
            {"a.slice/b.service/memory.max": "max", "a.slice/memory.max": f"{MIB}"},
            1,
        ),
        ("5:cpu:/\n4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{2 * MIB}"}, 2),
        ("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}"}, 64_000),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": f"{3 * MIB}"}, 3),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], total: int) -> None:
    found = machine(tmp_path, groups, limits)
    assert found.total == total * MIB
    assert found.available == min(total, 32_000) * MIB


def test_a_machine_without_these_files_has_its_memory(tmp_path: Path) -> None:
    assert host_memory(tmp_path).total > MIB


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{}", {}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        ('["ä", 1.5]'.encode(), ["ä", 1.5]),
        (b'"\\\\ud8"', "\\ud8"),
    ],
)
def test_json_is_read(text: bytes, value: object) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff", b"\xed\xa0\x80", b'"\xed\xa0\x80"', b'"\\ud800"', b'{"\\uDFFF": 1}',
        b'{"a": ["\\ud800x"]}',
        b"NaN", b"[Infinity]", b"-Infinity", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000,
        "{}".encode("utf-16"),
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_all_else_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        read_json(text)
    assert str(refusal.value).isprintable()
