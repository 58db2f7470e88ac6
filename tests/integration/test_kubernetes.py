"""The manifests for Kubernetes: valid by its schemas, agreeing with each other, and with what a broker is."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sluicemq_bench.access import new_key
from sluicemq_broker.config import load
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.ports import tcp

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
SECRETS = "/etc/sluicemq/secrets"
#: The oldest version of Kubernetes that has all of it, and one that is new.
VERSIONS = ("1.27", "1.33")


def documents(folder: str) -> list[dict[str, Any]]:
    files = sorted((FOLDER / folder).glob("*.yaml"))
    found = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [row for row in found if row["kind"] not in ("Kustomization", "Component")]


BASE = documents("base")
TOML = (FOLDER / "base/sluicemq.toml").read_text()


def of_kind(kind: str, name: str = "sluicemq") -> Any:
    [found] = [row for row in BASE if row["kind"] == kind and row["metadata"]["name"] == name]
    return found["spec"]


POD = of_kind("Deployment")["template"]["spec"]
[BROKER] = POD["containers"]
PORTS = {row["name"]: row["containerPort"] for row in BROKER["ports"]}
LABELS = {"app.kubernetes.io/name": "sluicemq"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "document", BASE, ids=lambda document: document["kind"] + " " + document["metadata"]["name"]
)
def test_a_manifest_has_the_schema_of_kubernetes(document: dict[str, Any], version: str) -> None:
    whole = complete(document)
    kubernetes_validate.validate(whole, version, strict=True)


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """The document as kustomize leaves it where a template has no labels of its own."""
    if document["kind"] != "Deployment":
        return document
    spec = document["spec"]
    return {**document, "spec": {**spec, "template": {**spec["template"], "metadata": {"labels": LABELS}}}}


def test_a_misspelt_key_is_found() -> None:
    [budget] = [row for row in BASE if row["kind"] == "PodDisruptionBudget"]
    wrong = {**budget, "spec": {**budget["spec"], "maxUnavailabel": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_file_is_in_the_kustomization_of_its_folder() -> None:
    for folder in ("base", "monitoring"):
        listed = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())["resources"]
        there = {file.name for file in (FOLDER / folder).glob("*.yaml")} - {"kustomization.yaml"}
        assert set(listed) == there
        assert len(listed) == len(there)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")
def test_kustomize_builds_the_example() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", FOLDER / "example"], capture_output=True, text=True, timeout=60, check=True
    )
    found = list(yaml.safe_load_all(built.stdout))
    kinds = {row["kind"] for row in found}
    assert kinds == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PrometheusRule"),
        *("Service", "ServiceAccount", "ServiceMonitor"),
    }
    for row in found:
        if "monitoring.coreos.com" not in row["apiVersion"]:
            kubernetes_validate.validate(row, VERSIONS[-1], strict=True)
    [deployment] = [row for row in found if row["kind"] == "Deployment"]
    [config] = [row for row in found if row["kind"] == "ConfigMap"]
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"] == LABELS
    assert template["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    [policy] = [row for row in found if row["kind"] == "NetworkPolicy"]
    clients = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert clients == {"sluicemq-client": "true"}


def test_all_selectors_mean_the_pods_of_the_brokers() -> None:
    selectors = [
        of_kind("Deployment")["selector"]["matchLabels"],
        of_kind("Service")["selector"],
        of_kind("Service", "sluicemq-brokers")["selector"],
        of_kind("PodDisruptionBudget")["selector"]["matchLabels"],
        of_kind("NetworkPolicy")["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert selectors == [LABELS] * len(selectors)


def test_ports_have_the_names_that_others_use_and_the_numbers_of_the_configuration() -> None:
    broker = tomllib.loads(TOML)["broker"]
    assert {name: int(broker[key].rpartition(":")[2]) for name, key in DOORS.items()} == PORTS
    for name in ("sluicemq", "sluicemq-brokers"):
        for port in of_kind("Service", name)["ports"]:
            assert (port["port"], port["targetPort"]) == (PORTS[port["name"]], port["name"])
    allowed = {row["port"] for rule in of_kind("NetworkPolicy")["ingress"] for row in rule["ports"]}
    assert allowed == set(PORTS)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert BROKER[probe]["httpGet"]["port"] in PORTS


DOORS = {"smq": "endpoint", "http": "http"}


def test_a_stop_has_more_time_than_it_needs() -> None:
    wait = int(BROKER["lifecycle"]["preStop"]["exec"]["command"][1])
    stop = tomllib.loads(TOML)["broker"]["stop_timeout"]
    assert POD["terminationGracePeriodSeconds"] >= wait + stop + 20


def test_a_new_broker_is_ready_before_an_old_one_stops() -> None:
    strategy = of_kind("Deployment")["strategy"]["rollingUpdate"]
    assert (strategy["maxUnavailable"], strategy["maxSurge"]) == (0, 1)
    assert BROKER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert BROKER["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_pod_holds_to_the_restricted_standard() -> None:
    pod, own = POD["securityContext"], BROKER["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not own["allowPrivilegeEscalation"]
    assert own["readOnlyRootFilesystem"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert {next(iter(set(volume) - {"name"})) for volume in POD["volumes"]} <= {
        "configMap",
        "secret",
        "emptyDir",
    }


def test_secrets_are_files_that_root_owns_and_the_group_reads() -> None:
    [volume] = [mount for mount in POD["volumes"] if "secret" in mount]
    assert volume["secret"]["defaultMode"] == 0o440
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]
    [mount] = [row for row in BROKER["volumeMounts"] if row["name"] == volume["name"]]
    assert mount["mountPath"] == SECRETS
    assert "env" not in BROKER
    page = (DEPLOY.parent / "docs/kubernetes.md").read_text()
    for file in re.findall(rf'"{SECRETS}/([\w.-]+)"', TOML):
        assert f"--from-file={file}" in page


def test_the_configuration_is_mounted_where_the_command_reads_it() -> None:
    assert BROKER["command"] == ["sluicemq", "serve", "--config", "/etc/sluicemq/sluicemq.toml"]
    [mount] = [row for row in BROKER["volumeMounts"] if row["name"] == "configuration"]
    assert mount["mountPath"] == BROKER["command"][-1]


def test_the_configuration_is_one_that_a_broker_takes(tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text(TOML.replace(SECRETS, str(tmp_path)))
    new_key(tmp_path / "secret.key")
    uri = tmp_path / "mongodb-uri"
    uri.write_text("mongodb://a,b,c/?replicaSet=rs0")
    uri.chmod(0o600)
    config = load(file, {}, {})
    assert config.broker.mongodb_uri_file == uri
    assert not config.broker.devices


def test_a_broker_with_it_shows_its_metrics_to_nobody(mongo_uri: str, database: str, tmp_path: Path) -> None:
    new_key(tmp_path / "secret.key")
    config = tomllib.loads(TOML.replace(SECRETS, str(tmp_path)))
    del config["broker"]["mongodb_uri_file"]
    config["broker"].update(endpoint=tcp(), http="0.0.0.0:0")
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        web = Web(f"127.0.0.1:{broker.http.rpartition(':')[2]}")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert web.get(BROKER[probe]["httpGet"]["path"]).status == 200
        assert web.get("/metrics").status == 401


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    made = (FOLDER / "monitoring/prometheusrule.yaml").read_text()
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    assert yaml.safe_load(made)["spec"] == rules, "run deploy/kubernetes/make-rules"


def test_the_monitor_finds_the_service_whose_name_is_the_job_of_the_rules() -> None:
    [monitor] = [
        document["spec"] for document in documents("monitoring") if document["kind"] == "ServiceMonitor"
    ]
    wanted = monitor["selector"]["matchLabels"]
    named = [
        row["metadata"]["name"]
        for row in BASE
        if row["kind"] == "Service" and {**LABELS, **row["metadata"]["labels"]}.items() >= wanted.items()
    ]
    assert named == ["sluicemq"]
    assert 'up{job="sluicemq"}' in (DEPLOY / "prometheus/alerts.yml").read_text()
    assert monitor["endpoints"][0]["port"] in PORTS
