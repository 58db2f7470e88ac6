"""Statements of many items: cut by bytes, halved, made of fewer, repeated until answered."""

from collections.abc import Callable, Sequence

import gevent
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import TooLargeError, UnavailableError
from sluicemq_broker.context import Retry
from sluicemq_broker.store import Aborted, Doubtful, Portions, Refused, Unclear, by_bytes, in_halves
from sluicemq_broker.store.jobs.reply_sizes import ReplySizes
from support.jobs import a_job, some_jobs


def refusing(bad: set[int]) -> tuple[list[Sequence[int]], Callable[[Sequence[int]], int]]:
    """A statement that refuses these items; and the parts that it was called with."""
    tried: list[Sequence[int]] = []

    def statement(part: Sequence[int]) -> int:
        tried.append(part)
        if bad.intersection(part):
            raise Refused("no")
        return len(part)

    return tried, statement


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.integers(1, 50))
def test_each_item_is_in_one_part_in_order(count: int, bad: set[int], most: int) -> None:
    tried, statement = refusing(bad)
    answers = list(in_halves(range(count), statement, most=lambda: most))
    assert [item for part, _ in answers for item in part] == list(range(count))
    assert {part[0] for part, answer in answers if isinstance(answer, Refused)} == bad & set(range(count))
    assert all(len(part) == 1 for part, answer in answers if isinstance(answer, Refused))
    assert all(len(part) <= most for part in tried)


def test_an_error_of_another_kind_is_raised_and_nothing_is_tried_after_it() -> None:
    tried: list[Sequence[str]] = []

    def statement(part: Sequence[str]) -> None:
        tried.append(part)
        raise KeyError

    with pytest.raises(KeyError):
        list(in_halves(["a", "b"], statement))
    assert tried == [["a", "b"]]


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.integers(1, 5))
def test_parts_keep_the_order_and_hold_no_more_bytes_or_items_than_allowed_unless_one_item_alone_does(
    sizes: list[int], most_bytes: int, most: int
) -> None:
    parts = list(by_bytes(sizes, lambda size: size, most_bytes, lambda: most))
    assert [size for part in parts for size in part] == sizes
    for part in parts:
        assert len(part) <= most
        assert sum(part) <= most_bytes or len(part) == 1


def test_without_items_there_is_one_empty_part() -> None:
    assert list(by_bytes([], len, 10)) == [[]]


ITEMS = range(100)


class Told:
    """What was noticed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, kind: str, text: str) -> None:
        assert kind == "transactions_aborted"
        self.texts.append(text)


def takes(most: int, tried: list[int], *, usual: bool = False) -> Callable[[Sequence[int]], list[int]]:
    """A statement that takes so many items, and aborts with more."""

    def statement(part: Sequence[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > most:
            raise Aborted(f"{len(part)} are too many", usual=usual)
        return list(part)

    return statement


def test_a_portion_that_is_aborted_is_halved_until_it_is_carried_out_and_that_is_said() -> None:
    told, tried = Told(), list[int]()
    done = [answer for _, answer in Portions(64, told).carry_out(ITEMS, takes(10, tried))]
    assert sum([part for part in done if isinstance(part, list)], list[int]()) == list(ITEMS)
    assert tried[:4] == [64, 32, 16, 8]
    assert told.texts[0] == "64 are too many; the next one has 32 at most"


def test_the_next_items_begin_with_the_size_that_was_taken_and_it_grows_back() -> None:
    portions, tried = Portions(64, Told()), list[int]()
    list(portions.carry_out(ITEMS, takes(10, tried)))
    tried.clear()
    list(portions.carry_out(ITEMS, takes(1000, tried)))
    assert 4 <= tried[0] <= 11
    for _ in range(20):
        list(portions.carry_out(ITEMS, takes(1000, tried)))
    assert portions.size == 64


def test_conflicts_shrink_a_portion_and_nobody_has_to_hear_of_it() -> None:
    told, tried = Told(), list[int]()
    portions = Portions(64, told)
    list(portions.carry_out(ITEMS, takes(20, tried, usual=True)))
    assert (told.texts, portions.size <= 20) == ([], True)


def test_one_item_that_is_refused_is_found_among_the_others_and_their_number_stays() -> None:
    portions = Portions(64, Told())

    def refuses_42(part: Sequence[int]) -> list[int]:
        if 42 in part:
            raise Refused("no")
        return list(part)

    answers = list(portions.carry_out(ITEMS, refuses_42))
    assert [list(part) for part, answer in answers if isinstance(answer, Refused)] == [[42]]
    assert sorted(item for part, _ in answers for item in part) == list(ITEMS)
    assert portions.size == 64


def test_what_fails_otherwise_is_raised_and_what_was_not_yielded_is_not_carried_out() -> None:
    def fails(part: Sequence[int]) -> list[int]:
        if 70 in part:
            raise KeyError
        return list(part)

    done: list[int] = []
    parts = Portions(50).carry_out(ITEMS, fails)
    done += next(parts)[0]
    with pytest.raises(KeyError):
        next(parts)
    assert done == list(range(50))


def test_nothing_is_carried_out_for_no_items() -> None:
    assert list(Portions(50).carry_out([], takes(1, []))) == []


MIB = 2**20


def test_small_jobs_without_headers_come_all_at_once_as_soon_as_some_were_claimed() -> None:
    pages = ReplySizes()
    before = pages.size(1000, 16 * MIB)
    for _ in range(20):
        pages.claimed(some_jobs(10))
    assert (before, pages.size(1000, 16 * MIB)) == (16, 1001)


def test_of_large_jobs_so_many_come_as_there_is_room_for_and_one_at_least() -> None:
    pages = ReplySizes()
    assert not pages.known
    pages.measured(MIB)
    assert [pages.size(1000, room) for room in (4 * MIB, 100)] == [4, 1]


def test_a_large_job_is_reckoned_with_until_many_small_ones_have_come() -> None:
    pages = ReplySizes()
    pages.pushed([a_job(size=8 * MIB)])
    sizes = []
    for _ in range(30):
        sizes.append(pages.size(1000, 16 * MIB))
        pages.claimed(some_jobs(10))
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] == 1001


def test_jobs_with_dear_headers_come_few_at_a_time() -> None:
    pages = ReplySizes()
    for _ in range(20):
        pages.claimed(some_jobs(10))
    pages.claimed([a_job(headers={"x": 1}, size=7 + 64 * 1024)])
    assert pages.size(1000, 16 * MIB) == 16


def at_once() -> Retry:
    """With waits that no test notices."""
    return Retry(0.001, 0.004)


def failing(*errors: Exception, answer: str = "answer") -> Callable[[], str]:
    """A statement that fails so many times, and then answers."""
    left = list(errors)

    def statement() -> str:
        if left:
            raise left.pop(0)
        return answer

    return statement


def test_an_answer_is_handed_on() -> None:
    assert at_once().run(failing()) == "answer"


def test_a_statement_is_repeated_until_it_is_answered() -> None:
    away = [UnavailableError("away")] * 5
    assert at_once().run(failing(*away)) == "answer"


def test_only_an_unclear_outcome_is_told_and_before_the_repetition() -> None:
    told: list[str] = []
    statement = failing(
        UnavailableError("not sent"), Unclear("cut"), UnavailableError("not sent"), Unclear("cut again")
    )

    def noted() -> str:
        told.append("sent")
        return statement()

    at_once().run(noted, lambda: told.append("unclear"))
    assert told == ["sent", "sent", "unclear", "sent", "sent", "unclear", "sent"]


def test_an_error_that_waiting_can_not_cure_is_raised_at_once() -> None:
    for error in (TooLargeError("16 MiB"), Refused("16 MiB")):
        with pytest.raises(type(error)):
            at_once().run(failing(error))


def test_what_is_refused_again_and_again_with_a_code_nobody_knows_is_refused_at_last() -> None:
    with pytest.raises(Refused, match="refused 10 times: a strange code"):
        at_once().run(failing(*[Doubtful("a strange code")] * 100))
    assert at_once().run(failing(*[Doubtful("a strange code")] * 9)) == "answer"


def test_trouble_in_between_makes_a_doubt_begin_anew() -> None:
    errors = [*[Doubtful("a strange code")] * 9, Unclear("cut"), *[Doubtful("a strange code")] * 9]
    assert at_once().run(failing(*errors)) == "answer"


def test_when_the_broker_gives_up_every_waiting_statement_raises_its_error() -> None:
    retry, tried = at_once(), Event()

    def away() -> None:
        tried.set()
        raise UnavailableError("away")

    waiting = [gevent.spawn(retry.run, away) for _ in range(3)]
    assert tried.wait(60)
    retry.give_up()
    gevent.joinall(waiting, timeout=60)
    assert retry.over
    assert all(isinstance(future.exception, UnavailableError) for future in waiting)


def test_after_giving_up_a_statement_is_tried_once_and_a_doubt_is_still_told() -> None:
    retry = at_once()
    retry.give_up()
    told: list[str] = []
    answer = retry.run(failing())
    with pytest.raises(Unclear):
        retry.run(failing(Unclear("cut")), lambda: told.append("unclear"))
    assert answer == "answer"
    assert told == ["unclear"]


def test_an_outage_is_two_lines_in_the_log_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    retry = at_once()
    retry.run(failing(*[UnavailableError("no primary")] * 9))
    retry.run(failing())
    said = [record.getMessage() for record in caplog.records if record.name == "broker.store"]
    assert said == ["MongoDB is away, waiting for it: no primary", "MongoDB is back"]
