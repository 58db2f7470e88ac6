"""``sluicemq bench plan``: more load never needs less, a plan carries what it was made for, pages show it."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.cli.app import app
from sluicemq_bench.capacity import AT_REST, Capacity, Costs, Hosts, Load, costs_of, planned

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
SHOWN = re.findall(r"<!-- planned -->\n```console\n\$ (.*)\n([^`]*)```", PAGE.read_text())
LOAD = Load(rate=1000.0, average=300.0)
#: More of each of these is more load.
GROWING = {
    "rate": 3.0, "average": 3.0, "size": 10, "queues": 100, "job_seconds": 2.0, "outage": 7200.0,
    "keep_done": 3600.0, "dead": 0.5, "keep_dead": 1e8, "stream_rate": 1e4, "claimed": 1.0,
}  # fmt: skip


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "plan", *arguments])


def needs(load: Load, hosts: Hosts | None = None) -> Capacity:
    return planned(load, costs_of(load), hosts or Hosts())


@given(
    st.floats(1, 1e6),
    st.integers(1, 1_000_000),
    st.sampled_from(["library", "rep"]),
    st.sampled_from(sorted(GROWING)),
)
def test_more_load_never_needs_less(rate: float, size: int, door: str, more: str) -> None:
    load = Load(rate=rate, average=rate / 3, size=size, door=door, claimed=0.5, stream_rate=1.0)
    value = getattr(load, more)
    greater_value: Any = 1.0 if more == "claimed" else type(value)(value * 2 + GROWING[more])
    change: Any = {more: greater_value}
    grown = replace(load, **change)
    less, greater = needs(load), needs(grown)
    assert greater.brokers >= less.brokers
    assert greater.replica_sets * greater.node_cores >= less.replica_sets * less.node_cores
    rounded = less.replica_sets  # up, for each of them
    for total in ("disk_bytes", "oplog_bytes", "written_bytes_per_s", "replicated_bytes_per_s"):
        before, then = (getattr(plan, total) * plan.replica_sets for plan in (less, greater))
        assert then >= (before - rounded) * 0.999999


@given(st.floats(1, 1e7), st.floats(1, 1000), st.floats(1, 1000), st.floats(0.1, 1), st.integers(1, 64))
def test_what_is_planned_carries_the_peak_when_one_broker_fails(
    rate: float, broker: float, mongod: float, use: float, cores: int
) -> None:
    load = Load(rate=rate, average=rate, queues=1)
    found = planned(load, Costs(broker, mongod, mongod), Hosts(cores=cores, use=use))
    assert rate * broker / 1e6 <= (found.brokers - 1) * use * 1.0001
    assert rate * mongod / 1e6 <= found.replica_sets * found.node_cores * use * 1.0001
    assert found.node_cores <= cores
    assert found.nodes == 3 * found.replica_sets


def test_a_small_load_has_two_brokers_and_one_replica_set() -> None:
    found = needs(Load(rate=1.0, average=1.0))
    assert (found.brokers, found.replica_sets, found.nodes, found.node_cores) == (2, 1, 3, 1)


def test_the_oplog_is_that_of_the_average_and_what_is_kept_too() -> None:
    found = needs(replace(LOAD, keep_done=1000.0, dead=0.0), Hosts(oplog=100.0))
    assert found.oplog_bytes == 300 * 100 * (200 + 930)
    assert found.replicated_bytes_per_s == 1000 * (200 + 930)
    assert (found.jobs_kept, found.jobs_waiting) == (300_000, 3_600_000)


def test_the_disk_of_a_node_has_its_share_of_everything_and_what_mongod_takes_at_rest() -> None:
    load = Load(rate=400_000.0, average=1000.0, outage=0.0, dead=0.0, keep_done=100.0)
    one, many = needs(load, Hosts(cores=64)), needs(load, Hosts(cores=8))
    assert one.disk_bytes == 1000 * 100 * (200 + 210) / 0.5 + one.oplog_bytes + AT_REST
    assert one.replica_sets == 1 < many.replica_sets
    assert (many.disk_bytes - AT_REST) * many.replica_sets == pytest.approx(one.disk_bytes - AT_REST)


def test_keys_cost_the_broker_more_and_mongodb_nothing() -> None:
    plain, keyed = costs_of(LOAD), costs_of(replace(LOAD, curve=True))
    assert keyed.broker > plain.broker
    assert (keyed.reserved, keyed.claimed) == (plain.reserved, plain.claimed)


def test_the_command_prints_every_figure_as_json() -> None:
    found = json.loads(run("--rate", "1000", "--json").stdout)
    assert set(found) == {field.name for field in fields(Capacity)} | {"costs"}
    assert found["costs"]["broker"] == 9.5
    assert found["jobs_waiting"] == 3_600_000


def test_jobs_at_work_are_shown_if_it_is_known_how_long_a_job_takes() -> None:
    assert "jobs at work" not in run("--rate", "1000").stdout
    assert re.search(r"jobs at work +1,500 ", run("--rate", "1000", "--job-seconds", "1.5s").stdout)


def test_an_average_above_the_peak_is_refused() -> None:
    result = run("--rate", "10", "--average", "11")
    assert result.exit_code == 2
    assert "more than the peak" in result.stderr


def test_the_bench_says_that_there_is_a_plan_and_still_measures() -> None:
    help_of_bench = CliRunner().invoke(app, ["bench", "--help"]).stdout
    assert "sluicemq bench plan" in help_of_bench
    assert "SCENARIO" in help_of_bench


@pytest.mark.parametrize(("command", "printed"), SHOWN)
def test_the_page_shows_what_the_command_prints(command: str, printed: str) -> None:
    result = CliRunner().invoke(app, command.split()[1:])
    assert [line.split() for line in printed.splitlines()] == [
        line.split() for line in result.stdout.splitlines()
    ]
