"""The compose file of the FastAPI example: valid, and agreeing with broker, commands and application."""

from __future__ import annotations

import ast
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sluicemq.cli.app import app
from sluicemq_broker.config import load, problems_of_exposure

yaml = pytest.importorskip("yaml")
pytest.importorskip("check_jsonschema")

FOLDER = Path(__file__).resolve().parents[2] / "examples/fastapi"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SCHEMA = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
)


def test_it_has_the_schema_of_the_compose_specification_and_opens_ports_to_this_host_alone() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "worker" in SERVICES
    assert "ports" not in SERVICES["worker"]  # there are two


def test_the_broker_takes_its_environment_and_is_where_the_application_looks() -> None:
    config = load(None, SERVICES["broker"]["environment"], {})
    assert problems_of_exposure(config) == []
    assert config.devices == ()
    for name in ("web", "worker"):
        assert SERVICES[name]["environment"]["SLUICEMQ_ENDPOINT"] == "tcp://broker:5550"
        assert SERVICES[name]["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert config.broker.endpoint.address.endswith(":5550")


def test_the_application_has_what_the_services_name() -> None:
    tree = ast.parse((FOLDER / "reports.py").read_text())
    names = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    program, command, work, *options = SERVICES["worker"]["command"]
    assert (program, command, work) == ("sluicemq", "work", "reports:tasks")
    assert {"tasks", "web"} <= names
    known = app.get_command(None, "work")  # type: ignore[arg-type]
    assert known
    assert set(options[::2]) <= {name for param in known.params for name in param.opts}
    assert '"reports:web"' in (FOLDER / "Containerfile").read_text()
