"""What is deployed beside Prometheus and Grafana names figures that there are."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from integration.test_metrics import Everything
from sluicemq_broker.http import metrics

ROOT = Path(__file__).parents[2]
ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/sluicemq.json").read_text())


def figures() -> set[str]:
    """The names of all samples of a broker that has counted everything."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(metrics.BrokerCollector(Everything(queues=1)))
    return {"up", *(sample.name for family in registry.collect() for sample in family.samples)}


def named(expression: str) -> set[str]:
    """The names of figures in an expression of PromQL."""
    return set(re.findall(r"\b(?:sluicemq|process)_[a-z_]+", expression))


def expressions() -> dict[str, str]:
    """Every expression by where it stands."""
    alerts = dict(re.findall(r"alert: (\w+)\n\s+expr: '([^']*)'\n", ALERTS))
    panels = {
        f"{panel['title']}, {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
    queries = {
        row["name"]: row["query"]["query"]
        for row in DASHBOARD["templating"]["list"]
        if row["type"] == "query"
    }
    return {**alerts, **panels, **queries}


@pytest.mark.parametrize("where", expressions())
def test_an_expression_names_figures_that_there_are(where: str) -> None:
    expression = expressions()[where]
    assert named(expression) - figures() == set()
    assert named(expression) or "up{" in expression
    assert expression.count("(") == expression.count(")")


def test_a_rise_is_looked_for_in_counters_only() -> None:
    risen = re.findall(r"(?:rate|increase)\((\w+)", json.dumps(expressions()))
    assert [name for name in risen if not name.endswith(("_total", "_bucket"))] == []


def test_every_rule_has_a_case_in_which_it_fires() -> None:
    cases = (ROOT / "deploy/prometheus/alerts.test.yml").read_text()
    fires = set(re.findall(r"alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:\n", cases))
    assert fires == set(re.findall(r"alert: (\w+)", ALERTS))


def test_promtool_takes_the_rules_and_each_fires_when_it_should() -> None:
    for what in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")):
        run = subprocess.run(
            ["promtool", *what],
            cwd=ROOT / "deploy/prometheus",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
