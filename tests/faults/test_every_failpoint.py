"""A broker is killed before and after each statement that writes, while another one runs.

Each script (``scripts.py``) is run once to find which failpoints it meets; then brokers are killed at those
at which none has died by a script before it. Nothing may be lost, done twice or stuck:
:mod:`faults.killed_at`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest
from pymongo import MongoClient

from faults.killed_at import Lane, NotMet
from faults.replica_set import ReplicaSet
from faults.scripts import CONFIG, SCENARIOS
from support.failpoints import comments

#: Kills at one time: nearly all of each is waiting for a lease to end.
LANES = 6
#: How often a kill is tried whose failpoint was not met, or in which a busy machine has ended a lease.
TRIES = 3
#: Seconds after which MongoDB ends the transaction that a killed broker has left open.
OPEN = 3

#: Failpoints at which no broker is killed here, and why. A name may end in a star.
WITHOUT: Final = {
    "audit.trim*": "records that are old go, and the next trim goes on; no job",
    "configurations.*": "what files say, so that brokers see where they differ; no job",
    "events.*": "events are hints, and behind them stands the poll: tests/faults/test_two_brokers.py",
    "figures.*": "what brokers say of themselves for dashboards, said again in seconds; no job",
    "history.*": "figures, no job: tests/faults/test_broker_killed.py kills around them",
    "history_window.*": "a parameter of a MongoDB, set by the command of a backup and by no broker",
    "incidents.*": "reports of what happened, no job",
    "indexes.mend": "makes again what somebody has removed, as queues.index made it",
    "limits.begin_again": "counters damaged by hand go: tests/integration/test_damaged_documents.py",
    "missing_children*": "reads in a transaction, and writes nothing",
    "packs.end_lifted": "where a lift comes between: the two hundred kills meet it",
    "packs.mark": "where a lift comes between: the two hundred kills meet it",
    "queues.*_beside": "a place or a limit of a removed queue stays, or the next round goes on; no job",
    "queues.*_empty": "where a broker does not hear of a removal: an empty queue, which left_over removes",
    "restores.*": "no broker may be there: tests/faults/test_backup_killed.py kills around them",
    "schedules.pause_all": "no broker may be there, and repeating the restore does it again",
    "schema.*": "the number of the store, no job; tests of the upgrade kill around it",
}


class Lanes:
    """Several databases of one MongoDB, each with its broker B; made when they are needed."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.killed: Counter[str] = Counter()
        """Points at which brokers have died, and how many."""
        self.missed: set[str] = set()
        """Points at which none has died, though its script has met them once: another broker was faster."""
        self._uri = uri
        self._folder = folder
        self._met: dict[str, set[str]] = {}
        self._open = ExitStack()
        self._free: SimpleQueue[Lane] = SimpleQueue()
        self._made = 0

    def met(self, script: str) -> set[str]:
        """Return the failpoints that a script meets, at which brokers are to be killed."""
        if script not in self._met:
            file = self._folder / script
            wrong = self._run(lambda lane: lane.trace(SCENARIOS[script], file))
            assert not wrong, f"{script}: {wrong}"
            self._met[script] = {point for point in file.read_text().split() if not is_without(point)}
        return self._met[script]

    def kill(self, script: str, point: str, time: int = 1) -> str:
        """Kill a broker there; return what is wrong then, or nothing."""
        try:
            wrong = self._run(lambda lane: lane.kill(SCENARIOS[script], point, time))
        except NotMet:
            self.missed.add(point)
            return ""
        self.killed[point] += 1
        return wrong and f"{point}: {wrong}"

    def close(self) -> None:
        self._open.close()

    def _run(self, script: Callable[[Lane], object]) -> str:
        for left in reversed(range(TRIES)):
            lane = self._take()
            before = len(lane.b.log_text())
            try:
                script(lane)
            except NotMet:
                if not left:
                    raise
            except BaseException as error:  # noqa: BLE001 - said with all others
                if not left or LOST not in lane.b.log_text()[before:]:
                    return f"{type(error).__name__}: {error}"
            else:
                return ""
            finally:
                self._free.put(lane)
        raise AssertionError

    def _take(self) -> Lane:
        if self._made < LANES and self._free.empty():
            self._made += 1
            return self._open.enter_context(Lane(self._uri, CONFIG))
        return self._free.get()


def is_without(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in WITHOUT)


#: A broker says so when another one has taken it for dead.
LOST = "was declared dead by another broker"


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        for name, value in (("transactionLifetimeLimitSeconds", OPEN), ("journalCommitInterval", 10)):
            mongo.admin.command({"setParameter": 1, name: value})
        lanes = Lanes(mongod.uri, tmp_path_factory.mktemp("met"))
        try:
            yield lanes
        finally:
            lanes.close()
        alive = lanes.missed - lanes.killed.keys()
        assert not alive, f"at these none has died: {alive}"


def test_a_broker_killed_before_the_commit_of_a_forward_leaves_the_job_in_one_queue(lanes: Lanes) -> None:
    assert not lanes.kill("forwarding", "forwards.commit.before")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCENARIOS)
def test_a_broker_killed_around_a_statement_loses_and_doubles_nothing(lanes: Lanes, script: str) -> None:
    points = {f"{name}.{moment}" for name in lanes.met(script) for moment in ("before", "after")}
    with ThreadPoolExecutor(LANES) as pool:
        kills = pool.map(lambda point: lanes.kill(script, point), sorted(points - lanes.killed.keys()))
        wrong = [kill for kill in kills if kill]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_two_hundred_brokers_killed_while_they_lift_from_packs_leave_nothing_lost_or_doubled(
    lanes: Lanes,
) -> None:
    names = {name for name in comments().values() if name.startswith("packs.")} - {"packs.purge"}
    points = [
        f"{name}.{moment}" for name in ("lifts.commit", *sorted(names)) for moment in ("before", "after")
    ]
    before = sum(lanes.killed.values())
    with ThreadPoolExecutor(LANES) as pool:
        # Some are met more often than others.
        kills = pool.map(lambda at: lanes.kill("bursting", points[at % len(points)], 1 + at % 3), range(230))
        wrong = [kill for kill in kills if kill]
    assert not wrong, "\n\n".join(wrong)
    assert sum(lanes.killed.values()) - before >= 200
    assert {point for point in points if not lanes.killed[point]} == set()


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_each_failpoint_is_met_by_a_script(lanes: Lanes) -> None:
    with ThreadPoolExecutor(LANES) as pool:
        met = set().union(*pool.map(lanes.met, SCENARIOS))
    given = {comment for comment in comments().values() if not is_without(comment)}
    by_none = {point for point in given if not any(fnmatchcase(f"{name}.", f"{point}.*") for name in met)}
    assert not by_none, "write scripts (scripts.py) that meet these, or say in WITHOUT why none does"
    assert not {name for name in met if "*" in name}, "verbs share these, and one does not say its name"


def test_each_reason_is_that_of_a_failpoint() -> None:
    given = set(comments().values())
    assert [pattern for pattern in WITHOUT if not any(fnmatchcase(name, pattern) for name in given)] == []
