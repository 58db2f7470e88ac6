"""How far publishers have come in streams: which batches need no look into MongoDB."""

from __future__ import annotations

import pytest

from sluicemq_broker.streams import BatchNumber
from sluicemq_broker.streams.publishers import Progress, Publishers


@pytest.fixture
def publishers() -> Publishers:
    return Publishers(most=3)


@pytest.fixture
def stream(publishers: Publishers) -> Progress:
    return publishers.of_stream()


def known(stream: Progress, *names: str) -> list[str]:
    """Return those of some publishers whose first batch the stream had."""
    return [name for name in names if stream.is_new(BatchNumber(name, 2))]


class TestIds:
    """Ids of batches that have a publisher and a number."""

    @pytest.mark.parametrize(
        ("batch_id", "read"),
        [
            ("p/000000000012", BatchNumber("p", 12)),
            ("#c0ffee/999999999999", BatchNumber("#c0ffee", 999_999_999_999)),
            ("a/b/000000000000", BatchNumber("a/b", 0)),
            ("/000000000012", None),  # nobody's
            ("000000000012", None),
            ("p-000000000012", None),
            ("p/00000000012", None),  # eleven digits
            ("p/0000000000012", None),
            ("p/00000000001x", None),
            ("p/-00000000012", None),
            ("p/٠٠٠٠٠٠٠٠٠٠١٢", None),  # digits, but not ours
            ("p/00000000001²", None),
            ("", None),
        ],
    )
    def test_an_id_names_publisher_and_number(self, batch_id: str, read: BatchNumber | None) -> None:
        assert BatchNumber.read(batch_id) == read

    @pytest.mark.parametrize(
        ("batch_id", "is_later"),
        [
            ("p/000000000041", False),
            ("p/000000000042", False),
            ("p/000000000043", True),
            ("p/999999999999", True),
            ("o/000000000043", False),
            ("p0/000000000043", False),
            ("p.a/000000000043", False),
            ("q/000000000043", False),
            ("p", False),
        ],
    )
    def test_between_the_two_ids_behind_a_batch_are_its_publishers_later_ones(
        self, batch_id: str, *, is_later: bool
    ) -> None:
        low, high = BatchNumber("p", 42).later_ids
        assert (low < batch_id < high) == is_later


class TestProgress:
    """What a stream knows of its publishers."""

    def test_nothing_is_new_of_a_publisher_that_is_not_known(self, stream: Progress) -> None:
        assert not stream.is_new(BatchNumber("p", 1))

    @pytest.mark.parametrize(("number", "is_new"), [(6, False), (7, False), (8, True), (900, True)])
    def test_a_batch_is_new_above_those_noted(self, stream: Progress, number: int, *, is_new: bool) -> None:
        stream.note(BatchNumber("p", 7))
        stream.note(BatchNumber("p", 5))
        assert stream.is_new(BatchNumber("p", number)) == is_new

    def test_a_batch_with_number_nought_is_noted_too(self, stream: Progress) -> None:
        stream.note(BatchNumber("p", 0))
        assert not stream.is_new(BatchNumber("p", 0))
        assert stream.is_new(BatchNumber("p", 1))

    def test_what_is_stored_raises_the_number_of_known_publishers_only(self, stream: Progress) -> None:
        stream.note(BatchNumber("p", 0))
        for publisher in ("p", "stranger"):
            stream.pass_by(BatchNumber(publisher, 9))
        assert not stream.is_new(BatchNumber("p", 9))
        assert stream.is_new(BatchNumber("p", 10))
        assert not stream.is_new(BatchNumber("stranger", 10))

    def test_each_stream_knows_its_own(self, publishers: Publishers) -> None:
        one, other = publishers.of_stream(), publishers.of_stream()
        one.note(BatchNumber("p", 1))
        assert known(one, "p") == ["p"]
        assert known(other, "p") == []

    def test_publishers_that_published_longest_ago_are_forgotten(self, stream: Progress) -> None:
        for name in ("a", "b", "c"):
            stream.note(BatchNumber(name, 1))
        stream.pass_by(BatchNumber("a", 1))
        stream.note(BatchNumber("d", 1))
        assert known(stream, "a", "b", "c", "d") == ["a", "c", "d"]

    def test_the_bound_is_one_for_all_streams(self, publishers: Publishers, stream: Progress) -> None:
        other = publishers.of_stream()
        for name in ("a", "b"):
            stream.note(BatchNumber(name, 1))
        for name in ("c", "d"):
            other.note(BatchNumber(name, 1))
        assert known(stream, "a", "b") == ["b"]
        assert known(other, "c", "d") == ["c", "d"]
