"""Hostile input: each target takes its corpus, and some new cases; ``./deploy/test fuzz`` tries many."""

import logging
import os
import secrets
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import gevent
import pytest

from fuzz import corpus, targets
from fuzz.attempts import Target, attempt_all
from fuzz.choices import Choices, packed
from fuzz.mutations import mutated

ALL = targets.load()
#: Cases of each target beyond its corpus.
CASES = 50
#: Bytes of all corpora.
MOST_BYTES = 300_000


@pytest.mark.parametrize("name", ALL)
def test_a_target_takes_its_corpus_and_some_cases_made_of_it(name: str) -> None:
    seeds, seed = list(corpus.read(name).values()), secrets.randbelow(2**31)
    found = attempt_all(ALL[name], [*seeds, *islice(mutated(seeds, Random(seed)), CASES)])
    assert not found, f"seed {seed}: {found[0].data!r}\n{found[0].report}"


def test_each_target_has_a_corpus_and_they_are_small() -> None:
    files = list(corpus.FOLDER.iterdir())
    assert {file.stem for file in files} == set(ALL)
    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_pieces_are_read_as_they_are_written() -> None:
    pieces = [b"", b"a", b"b" * 254, b"c" * 255, b"d" * 5000]
    assert list(Choices(packed(*pieces)).pieces()) == pieces


_DATA: dict[str, bytes] = {}


def _endless(_data: bytes) -> None:
    while True:
        pass


def _logs(_data: bytes) -> None:
    logging.getLogger("broker.doors").error("a message could not be read", exc_info=KeyError("unforeseen"))


def _ends_a_greenlet(_data: bytes) -> None:
    gevent.spawn(_DATA.__getitem__, "nobody foresaw it")
    gevent.idle()


def _raises(data: bytes) -> None:
    raise ValueError(data)


@pytest.mark.parametrize(
    ("run", "error"),
    [(_endless, "TooLong"), (_logs, "KeyError"), (_ends_a_greenlet, "KeyError"), (_raises, "ValueError")],
)
def test_a_case_that_lasts_or_logs_an_error_or_raises_one_is_a_finding(run: object, error: str) -> None:
    (found,) = attempt_all(Target("it", run, (TypeError,)), [b"x"])  # type: ignore[arg-type]
    assert found.place[0] == error


def test_a_foreseen_error_is_none() -> None:
    assert attempt_all(Target("it", _raises, (ValueError,)), [b"x"]) == []


@pytest.mark.full
def test_a_run_by_hand_counts_its_cases_and_replays_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz.run", "--target", "keys"]
    root = Path(__file__).parents[2]
    paths = [str(root / "tools"), str(root / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    ran = subprocess.run(
        [*command, "--cases", "50", "--without-atheris"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "case").write_bytes(b"rq!Y[")
    replayed = subprocess.run(
        [*command, "--replay", str(tmp_path / "case")],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "50 cases in" in ran.stdout
    assert "0 findings" in ran.stdout
    assert "nothing wrong" in replayed.stdout
