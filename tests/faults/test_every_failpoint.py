"""A broker is killed before and after each statement that writes, while another one runs.

``failpoints.toml`` says which script (``scripts.py``) meets which failpoint. Nothing may be lost, done twice
or stuck: :mod:`faults.killed_at`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from pymongo import MongoClient

from faults.killed_at import Lane, NotMet
from faults.replica_set import ReplicaSet
from faults.scripts import CONFIG, SCENARIOS

#: Kills at one time: nearly all of each is waiting for a lease to end.
LANES = 6
#: How often a kill is tried whose failpoint was not met, or in which a busy machine has ended a lease.
TRIES = 3
#: Seconds after which MongoDB ends the transaction that a killed broker has left open.
OPEN = 3

POINTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("failpoints.toml").read_text())["met"]


class Lanes:
    """Several databases of one MongoDB, each with its broker B; made when they are needed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._open = ExitStack()
        self._free: SimpleQueue[Lane] = SimpleQueue()
        self._made = 0

    def kill(self, name: str, point: str) -> str:
        """Kill a broker there; return what is wrong then, or nothing."""
        for left in reversed(range(TRIES)):
            lane = self._take()
            before = len(lane.b.log_text())
            try:
                lane.kill(SCENARIOS[name], point)
            except NotMet as error:
                if not left:
                    return f"{point}: {error}"
            except BaseException as error:  # noqa: BLE001 - said with all others
                if not left or LOST not in lane.b.log_text()[before:]:
                    return f"{point}: {type(error).__name__}: {error}"
            else:
                return ""
            finally:
                self._free.put(lane)
        raise AssertionError

    def close(self) -> None:
        self._open.close()

    def _take(self) -> Lane:
        if self._made < LANES and self._free.empty():
            self._made += 1
            return self._open.enter_context(Lane(self._uri, CONFIG))
        return self._free.get()


#: A broker says so when another one has taken it for dead.
LOST = "was declared dead by another broker"


@pytest.fixture(scope="module")
def lanes() -> Iterator[Lanes]:
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        for name, value in (("transactionLifetimeLimitSeconds", OPEN), ("journalCommitInterval", 10)):
            mongo.admin.command({"setParameter": 1, name: value})
        lanes = Lanes(mongod.uri)
        try:
            yield lanes
        finally:
            lanes.close()


def test_a_broker_killed_before_the_commit_of_a_forward_leaves_the_job_in_one_queue(lanes: Lanes) -> None:
    commit = "transactions._carried_out:with_transaction<forwards.forward"
    assert commit in POINTS["forwarding"]
    assert not lanes.kill("forwarding", f"{commit}.before")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", POINTS)
def test_a_broker_killed_around_each_statement_leaves_nothing_lost_doubled_or_stuck(
    lanes: Lanes, name: str
) -> None:
    points = [f"{point}.{moment}" for point in POINTS[name] for moment in ("before", "after")]
    with ThreadPoolExecutor(LANES) as pool:
        wrong = [each for each in pool.map(lambda point: lanes.kill(name, point), points) if each]
    assert not wrong, "\n\n".join(wrong)
