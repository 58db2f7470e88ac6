"""Compose files of ``deploy/container`` and of an example: valid, and agreeing with what a broker is."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sluicemq.cli.app import app
from sluicemq.transport.profiles import KEYS
from sluicemq_broker.config import Config, load, problems_of_doors, problems_of_exposure

yaml = pytest.importorskip("yaml")
pytest.importorskip("check_jsonschema")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/container"
CONTAINERFILE = (FOLDER / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS = ("broker1", "broker2")
MEMBERS = ("mongo1", "mongo2", "mongo3")
SCHEMA = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``prepare`` makes, in a copy of the folder."""
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("prepare", "sluicemq.toml"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    prepare(folder)
    return folder / "local"


def prepare(folder: Path) -> str:
    environ = os.environ | {"SLUICEMQ": f"{sys.executable} -m sluicemq"}
    done = subprocess.run(
        ["bash", str(folder / "prepare")], env=environ, capture_output=True, text=True, check=True
    )
    return done.stderr


#: The words of docker that make a key, done by this environment.
DOCKER = f"""#!/bin/sh
[ "$1 $2 $3 $4 $5" = "run --rm sluicemq key new" ] && exec {sys.executable} -m sluicemq key new
"""


def configuration(prepared: Path, folder: Path) -> Config:
    """What the brokers read, with their secrets where this machine has them."""
    file = folder / "sluicemq.toml"
    file.write_text((prepared / "broker/sluicemq.toml").read_text().replace("/run/secrets", str(prepared)))
    for secret in ("mongodb-uri", "secret.key"):
        (prepared / secret).chmod(0o600)  # Docker mounts them so that nobody can write there
    return load(file, {}, {})


# ------------------------------------------------------------------- compose.yaml


def test_it_has_the_schema_of_the_compose_specification() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)


def test_a_misspelt_key_is_found() -> None:
    wrong = {**COMPOSE, "services": {"broker1": {**SERVICES["broker1"], "stop_grace_perod": "60s"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(wrong)


def test_every_port_is_of_this_host_alone_and_one_that_the_service_has() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {*BROKERS, "prometheus", "grafana"}
    own = {"prometheus": {"9090"}, "grafana": {"3000"}, **{name: {"5550", "5580"} for name in BROKERS}}
    outside = set()
    for name, ports in published.items():
        for address, here, inside in (port.split(":") for port in ports):
            assert address == "127.0.0.1"
            assert inside in own[name]
            outside.add(here)
    assert len(outside) == sum(map(len, published.values()))


def test_all_files_are_there_or_made_by_prepare(prepared: Path) -> None:
    mounted = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    sources = {mount.split(":")[0] for mount in mounted if mount.startswith(".")}
    sources |= {row["file"] for row in COMPOSE["secrets"].values()}
    assert len(sources) > 10
    for source in sources:
        path = source.removeprefix("./local/")
        assert (prepared / path if path != source else FOLDER / source).exists(), source
    volumes = {mount.split(":")[0] for mount in mounted} - sources
    assert volumes == set(COMPOSE["volumes"])
    assert all(mount.endswith(":ro") for mount in mounted if mount.startswith("."))


def test_every_secret_is_used_where_it_is_given() -> None:
    given = {name: set(settings.get("secrets", ())) for name, settings in SERVICES.items()}
    assert set().union(*given.values()) == set(COMPOSE["secrets"])
    read = {
        "broker1": (FOLDER / "sluicemq.toml").read_text(),
        "prometheus": (FOLDER / "prometheus.yml").read_text(),
    }
    for name, service in SERVICES.items():
        text = read.get(name.replace("broker2", "broker1"), "") + json.dumps(service)
        assert set(re.findall(r"/run/secrets/([\w.-]+)", text)) == given[name], name


def test_services_start_again_and_in_order() -> None:
    for name, service in SERVICES.items():
        if name not in ("replica-set", "sluicemq"):
            assert service["restart"] == "unless-stopped", name
    assert SERVICES["replica-set"]["network_mode"] == f"service:{MEMBERS[0]}"
    healthy = {name: {"condition": "service_healthy"} for name in MEMBERS}
    assert SERVICES["replica-set"]["depends_on"] == healthy
    assert all(SERVICES[name]["healthcheck"] for name in (*MEMBERS, "prometheus", "grafana"))
    for name in BROKERS:
        assert SERVICES[name]["depends_on"] == {
            "replica-set": {"condition": "service_completed_successfully"}
        }


def test_what_runs_our_image_has_no_rights_and_writes_nothing() -> None:
    ours = {name: service for name, service in SERVICES.items() if service["image"] == "sluicemq"}
    assert set(ours) == {*BROKERS, "replica-set", "sluicemq"}
    for our in ours.values():
        assert our["read_only"]
        assert our["cap_drop"] == ["ALL"]
        assert our["security_opt"] == ["no-new-privileges:true"]
    for service in SERVICES.values():
        assert service["image"] == "sluicemq" or re.fullmatch(
            r"docker\.io/[\w/-]+:v?\d[\w.]*", service["image"]
        )


def test_a_stop_has_more_time_than_it_needs(prepared: Path, tmp_path: Path) -> None:
    stop = configuration(prepared, tmp_path).broker.stop_timeout
    for name in BROKERS:
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= stop + 20


def test_the_page_shows_a_configuration_that_a_broker_takes(tmp_path: Path) -> None:
    page = (ROOT / "docs/container.md").read_text()
    [typed] = re.findall(r"<!-- container: secrets -->\n```sh\n(.*?)```", page, re.DOTALL)
    [run] = re.findall(r"<!-- container: run -->\n```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", typed], cwd=tmp_path, env=environ, check=True, capture_output=True)
    folder = tmp_path / "broker"

    text = (folder / "sluicemq.toml").read_text()
    for secret in re.findall(r'"/run/secrets/(.*)"', text):
        assert f'"$PWD/{secret}:/run/secrets/{secret}:ro"' in run
        (folder / secret).chmod(0o600)
    (folder / "sluicemq.toml").write_text(text.replace("/run/secrets", str(folder)))
    config = load(folder / "sluicemq.toml", {}, {})
    assert problems_of_exposure(config) == []
    assert problems_of_doors(config) == []
    assert folder.stat().st_mode & 0o777 == 0o700


# ------------------------------------------------------------ what the services read


def test_the_configuration_is_one_that_a_broker_takes(prepared: Path, tmp_path: Path) -> None:
    config = configuration(prepared, tmp_path)
    assert problems_of_exposure(config) == []
    assert problems_of_doors(config) == []
    assert config.broker.endpoint.address == "tcp://*:5550"
    assert config.broker.http == "0.0.0.0:5580"
    for name in BROKERS:
        assert SERVICES[name]["command"][:2] == ["serve", "--config"]
        assert SERVICES[name]["command"][2] == "/etc/sluicemq/sluicemq.toml"
        assert SERVICES[name]["volumes"] == ["./local/broker:/etc/sluicemq:ro"]
    uri = config.broker.mongodb_uri_file
    assert uri
    assert uri.read_text().split("@")[1] == f"{','.join(MEMBERS)}/?replicaSet=rs0&authSource=admin"
    assert "rs0" in SERVICES["mongo1"]["command"]


def test_what_is_prepared_is_kept_and_nobody_else_gets_in(prepared: Path) -> None:
    before = {file: file.read_bytes() for file in prepared.rglob("*") if file.is_file()}
    assert prepare(prepared.parent) == ""
    assert {file: file.read_bytes() for file in prepared.rglob("*") if file.is_file()} == before
    assert prepared.stat().st_mode & 0o777 == 0o700
    secrets = [text for file, text in before.items() if file.name not in ("sluicemq.toml", "config.toml")]
    assert len(set(secrets)) == len(secrets)
    assert not any(file.name.endswith(".part") for file in before)


def test_the_commands_have_a_profile_for_both_brokers(prepared: Path) -> None:
    profile = tomllib.loads((prepared / "client/config.toml").read_text())["profiles"]["compose"]
    assert set(profile) <= set(KEYS)
    assert profile["endpoint"] == [f"tcp://{name}:5550" for name in BROKERS]
    folder = f"{SERVICES['sluicemq']['environment']['XDG_CONFIG_HOME']}/sluicemq"
    assert SERVICES["sluicemq"]["volumes"] == [f"./local/client:{folder}:ro"]


def test_prometheus_asks_both_brokers_and_has_the_rules() -> None:
    own = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    others = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [job] = own["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:5580" for name in BROKERS]}]
    assert job["job_name"] == others["scrape_configs"][0]["job_name"]
    [rules] = own["rule_files"]
    assert f"../prometheus/{rules}:/etc/prometheus/{rules}:ro" in SERVICES["prometheus"]["volumes"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    [source] = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == (
        "prometheus",
        "http://prometheus:9090",
        True,
    )
    [provider] = yaml.safe_load((FOLDER / "grafana/dashboards/sluicemq.yaml").read_text())["providers"]
    where = provider["options"]["path"]
    assert f"../grafana/sluicemq.json:{where}/sluicemq.json:ro" in SERVICES["grafana"]["volumes"]


# ------------------------------------------------------------------- Containerfile


def test_the_image_has_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS=([\w,]+)", CONTAINERFILE)
    assert {name for names in named for name in names.split(",")} <= set(extras)
    assert named[-1] == "broker,redis"


#: A package of a lock, by its version and the hashes of its wheels.
_LOCKED = r"^([\w.-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$"


@pytest.mark.parametrize("extras", ["broker,redis", "embedded,redis"])
def test_all_that_an_image_needs_is_locked_by_its_hashes(extras: str) -> None:
    text = (ROOT / "deploy/container/lock" / f"{extras}.txt").read_text()
    locked = {canonicalize_name(name): version for name, version in re.findall(_LOCKED, text, re.MULTILINE)}
    assert len(locked) == text.count("==")
    for requirement in map(Requirement, ["setuptools>=77", *_needed(extras.split(","))]):
        if requirement.marker is None or requirement.marker.evaluate():
            assert locked[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert "--require-hashes" in CONTAINERFILE


def _needed(extras: list[str]) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from project["dependencies"]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"sluicemq\[(.*)\]", requirement)
            yield from _needed(own[1].split(",")) if own else (requirement,)


def test_the_health_check_is_a_command_that_there_is() -> None:
    words = json.loads(CONTAINERFILE.split("\nHEALTHCHECK")[1].split("CMD ")[1].split("\n")[0])
    assert words[0] == "sluicemq"
    command = app.get_command(None, words[1])  # type: ignore[arg-type]
    assert command
    assert "--http" in {name for param in command.params for name in param.opts}
    assert words[2:] == ["--http", "127.0.0.1:5580"]


def test_a_build_reads_what_pip_needs_and_no_more() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    read = {"pyproject.toml", "README.md", "LICENSE", "broker", "devices", "clients/sluicemq"}
    assert kept == read | {"deploy/container/lock", "deploy/container/bill.py"}
    assert all((ROOT / name).exists() for name in kept)


pytest.importorskip("check_jsonschema")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/fastapi"
EXAMPLE_COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
EXAMPLE_SERVICES: dict[str, Any] = EXAMPLE_COMPOSE["services"]


def test_it_has_the_schema_of_the_compose_specification_and_opens_ports_to_this_host_alone() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(EXAMPLE_COMPOSE)
    ports = [port for service in EXAMPLE_SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "worker" in EXAMPLE_SERVICES
    assert "ports" not in EXAMPLE_SERVICES["worker"]  # there are two


def test_the_broker_takes_its_environment_and_is_where_the_application_looks() -> None:
    config = load(None, EXAMPLE_SERVICES["broker"]["environment"], {})
    assert problems_of_exposure(config) == []
    assert config.devices == ()
    for name in ("web", "worker"):
        assert EXAMPLE_SERVICES[name]["environment"]["SLUICEMQ_ENDPOINT"] == "tcp://broker:5550"
        assert EXAMPLE_SERVICES[name]["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert config.broker.endpoint.address.endswith(":5550")


def test_the_application_has_what_the_services_name() -> None:
    tree = ast.parse((EXAMPLE / "reports.py").read_text())
    names = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    program, command, work, *options = EXAMPLE_SERVICES["worker"]["command"]
    assert (program, command, work) == ("sluicemq", "work", "reports:tasks")
    assert {"tasks", "web"} <= names
    known = app.get_command(None, "work")  # type: ignore[arg-type]
    assert known
    assert set(options[::2]) <= {name for param in known.params for name in param.opts}
    assert '"reports:web"' in (EXAMPLE / "Containerfile").read_text()
