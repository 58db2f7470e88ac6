"""Checks of the doctor whose set-ups no test has: facts and answers are handed in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from sluicemq_broker.config import Config, load
from sluicemq_broker.doctor import Answers, ExaminedStore, Finding, Host, Level, Subject, findings_of, worst
from sluicemq_broker.store import ServerFacts
from sluicemq_broker.store.admin.server_facts import Member, Oplog
from support.certificates import Authority

GIB: Final = 1 << 30
IN_2026: Final = 1.8e9
THREE: Final = tuple(
    Member(f"{name}:27017", state, is_healthy=True, lag=0.0)
    for name, state in (("a", "PRIMARY"), ("b", "SECONDARY"), ("c", "SECONDARY"))
)
DOWN: Final = Member("c", "(not reachable/healthy)", is_healthy=False, lag=None)
WELL: Final = ServerFacts(
    version="7.0.1",
    is_sharded=False,
    set_name="rs0",
    ahead=0.01,
    uncertain=0.01,
    members=THREE,
    voters=(3, 3),
    oplog=Oplog(90_000.0, 99, 100),
    disk=(50 * GIB, 100 * GIB),
    connections=(10, 10_000),
)
QUEUE: Final[Mapping[str, Any]] = {
    "name": "mail",
    "paused": [],
    "oldest_ready_age": None,
    **dict.fromkeys(("ready", "reserved", "dead", "workers"), 0),
}


def found(
    *,
    facts: ServerFacts | None = None,
    config: Config | None = None,
    answers: Answers | None = None,
    now: float = 1e9,
    taken: tuple[str, ...] = (),
) -> dict[str, list[Finding]]:
    """Examine a set-up of which only these are known."""
    return findings_of(
        Subject(
            file=None,
            config=config,
            problems=(),
            taken=taken,
            host=Host(None, None, None, 8 * GIB, 4 * GIB, 65_536),
            store=ExaminedStore(facts=facts),
            answers=answers or Answers(),
            now=now,
        )
    )


def bad(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [
        (finding.level, finding.what) for finding in findings if finding.level in (Level.WARNING, Level.ERROR)
    ]


def test_a_replica_set_that_is_well_has_no_finding() -> None:
    assert bad(found(facts=WELL)["mongodb"]) == []


@pytest.mark.parametrize(
    ("facts", "level", "said"),
    [
        ({"members": (*THREE[:2], DOWN)}, "error", "member c of"),
        ({"members": (*THREE[:2], THREE[2]._replace(lag=70.0))}, "warning", "c:27017 is 70 s behind"),
        ({"voters": (3, 2)}, "warning", "an arbiter in place of data"),
        ({"oplog": Oplog(7_200.0, 99, 100)}, "warning", "the oplog is too short"),
        ({"oplog": Oplog(600.0, 99, 100)}, "error", "the oplog is too short"),
        ({"ahead": -200.0}, "warning", "differ by 200 s"),
        ({"disk": (2 * GIB, 100 * GIB)}, "warning", "the disk of MongoDB is nearly full"),
        ({"disk": (10 << 20, 100 * GIB)}, "error", "the disk of MongoDB is full"),
        ({"connections": (65_000, 100)}, "warning", "only 100 further connections"),
        ({"version": "4.2.9"}, "error", "4.2.9 is too old"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_mongodb_is_named(facts: dict[str, Any], level: str, said: str) -> None:
    [(found_level, what)] = bad(found(facts=WELL._replace(**facts))["mongodb"])
    assert (found_level, said in what) == (level, True), what


def test_an_oplog_that_is_young_and_not_full_is_no_finding() -> None:
    assert bad(found(facts=WELL._replace(oplog=Oplog(5.0, 1, 100)))["mongodb"]) == []


def test_what_a_user_may_not_see_is_said_with_the_role_that_lets_it() -> None:
    less = WELL._replace(
        oplog=None, members=None, unseen={"oplog": "not authorized", "members": "not authorized"}
    )
    said = [finding for finding in found(facts=less)["mongodb"] if finding.level == Level.INFO]
    assert [finding.what for finding in said] == [
        f"{name} of MongoDB can't be looked at" for name in ("members", "oplog")
    ]
    assert all("clusterMonitor" in finding.to_do for finding in said)


@pytest.mark.parametrize("taken", [(), ("127.0.0.1:5550",)])
def test_addresses_of_doors_are_free_or_one_is_taken(taken: tuple[str, ...]) -> None:
    said = [finding.what for finding in found(config=Config.default(), taken=taken)["config"]]
    assert ("the addresses of all doors are free" in said) == (not taken)
    assert [what[:14] for what in said if "is taken" in what] == list(taken)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"host": "*", "insecure": True}, "clients need no key there"),
        ({"http": "0.0.0.0:5580", "http_insecure": True}, "other machines can reach the HTTP door"),
        ({"allow_unsafe_store": True}, "allow_unsafe_store is set"),
        ({"lease": 1}, "lease is 1 s"),
    ],
)
def test_values_that_are_rarely_meant_are_named(flags: dict[str, Any], said: str) -> None:
    assert said in "\n".join(what for _level, what in bad(found(config=load(None, {}, flags))["config"]))


@pytest.mark.parametrize(
    ("row", "level", "said"),
    [
        ({"ready": 3}, Level.WARNING, "3 ready jobs, and no workers"),
        (
            {"ready": 3, "workers": 2, "oldest_ready_age": 900.0},
            Level.WARNING,
            "wait for 900 s, though it has",
        ),
        ({"paused": ["delivery"], "ready": 3}, Level.INFO, "is paused: delivery"),
        ({"dead": 4}, Level.INFO, "has 4 dead letters"),
    ],
)
def test_queues_that_need_somebody_are_named(row: dict[str, Any], level: Level, said: str) -> None:
    answers = Answers(endpoint="tcp://127.0.0.1:1", by_name={"queues": [{**QUEUE, **row}]})
    [what] = [finding.what for finding in found(answers=answers)["queues"] if finding.level == level]
    assert said in what


def test_other_brokers_may_have_the_workers() -> None:
    brokers = {"brokers": [{"ended": None}, {"ended": None}]}
    by_name = {"queues": [{**QUEUE, "ready": 1}], "brokers": brokers}
    [(_level, what)] = bad(found(answers=Answers(endpoint="tcp://127.0.0.1:1", by_name=by_name))["queues"])
    assert "other brokers may have some" in what


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ({"broker": {"store": "no primary"}}, "its MongoDB does not: no primary"),
        ({"counters": {"lease_lost": 1}}, "it lost its lease"),
        ({"counters": {"bus_lost": 1}}, "could not receive events"),
        ({"broker": {"longest_turn": 3.0}}, "stood still for 3.0 s"),
    ],
)
def test_what_a_broker_says_of_itself_is_named(counters: dict[str, Any], said: str) -> None:
    answers = Answers(endpoint="tcp://127.0.0.1:1", by_name={"counters": counters})
    assert said in "\n".join(what for _level, what in bad(found(answers=answers)["brokers"]))


def test_a_broker_that_lets_nobody_in_is_named() -> None:
    answers = Answers(endpoint="tcp://127.0.0.1:1", code="FORBIDDEN", message="it wants a key", listens=True)
    [(level, what)] = bad(found(answers=answers)["brokers"])
    assert (level, "does not let this client in" in what) == (Level.ERROR, True)


def test_the_worst_level_decides_the_exit_code() -> None:
    assert [worst(levels).exit_code for levels in ([], [Level.OK, Level.INFO])] == [0, 0]
    assert worst([Level.WARNING, Level.OK]).exit_code == 1
    assert worst([Level.ERROR, Level.WARNING]).exit_code == 2


@pytest.mark.parametrize(
    ("days", "level", "said"),
    [(30, Level.OK, "holds until"), (10, Level.WARNING, "expires on"), (-1, Level.ERROR, "has expired on")],
)
def test_the_http_doors_certificate_is_checked(tmp_path: Path, days: int, level: Level, said: str) -> None:
    made = Authority(tmp_path).certificate("localhost", days=days)
    file = tmp_path / "broker.toml"
    file.write_text(f'[broker]\nhttp_tls_cert = "{made.chain}"\nhttp_tls_key = "{made.key}"\n')
    findings = found(config=load(file, {}, {}), now=time.time())
    (mine,) = [finding for some in findings.values() for finding in some if "certificate" in finding.what]
    assert mine.level == level
    assert said in mine.what


def test_a_mongodb_without_fixes_is_named_and_its_own_one_on_this_machine_is_only_mentioned() -> None:
    (finding,) = found(facts=WELL._replace(version="6.0.5"), now=IN_2026)["mongodb"][:1]
    levels = {
        finding.level for finding in found(facts=WELL._replace(version="6.0.5"), now=IN_2026)["mongodb"]
    }
    assert finding.level == Level.OK
    assert Level.WARNING in levels
    assert bad(found(facts=WELL, now=IN_2026)["mongodb"]) == []
