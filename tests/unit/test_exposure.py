"""Doors that other machines can reach are refused where clients need no key, unless that is meant."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest
import tomli_w
from click.testing import CliRunner

from sluicemq.protocol.keys import KeyPair, write_key_file
from sluicemq.protocol.secret_files import write_secret
from sluicemq_broker.command.serve import serve
from sluicemq_broker.config import exposed, http_exposure, load, problems_of_exposure
from support.certificates import Authority

OPEN = '[broker]\nhost = "0.0.0.0"\n'
HTTP = '[broker]\nhttp = "0.0.0.0:5580"\n'
CURVE = '[security]\nmechanism = "curve"\nsecret_key_file = "broker.key"\n'
DEVICE = '[[devices]]\nkind = "streamer"\n'


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Authority(tmp_path).certificate("localhost")
    made.chain.rename("certificate.pem")
    made.key.rename("key.pem")
    write_key_file("broker.key", KeyPair(bytes(32), bytes(range(32))))


def test_by_default_nothing_is_exposed() -> None:
    assert refusals("") == []


def test_all_doors_that_a_host_opens_are_one_problem() -> None:
    (said,) = refusals(OPEN)
    assert said.startswith(
        "other machines can reach tcp://0.0.0.0:5550 and 7 more doors, and everybody may do everything there."
    )
    assert "--mongodb-uri-file" in said


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ('data_dir = "/srv/mq"', "/srv/mq/mongodb.uri`"),
        ('mongodb_uri = "mongodb://a/"', "FILE`"),
        ('mongodb_uri_file = "uri"', "/uri`"),
    ],
)
def test_a_refusal_names_the_file_by_which_the_first_client_gets_in(given: str, file: str) -> None:
    write_secret("uri", "mongodb://a/")
    (said,) = refusals(OPEN + given)
    assert file in said


@pytest.mark.parametrize("text", [OPEN, HTTP, OPEN + 'http = "0.0.0.0:5580"\n'])
def test_the_lines_that_a_refusal_says_are_all_that_is_needed(text: str) -> None:
    said = "\n".join(refusals(text))
    assert said
    lines = textwrap.dedent("\n".join(re.findall(r"^    .*$", said, re.MULTILINE)))
    tables: dict[str, dict[str, object]] = {}
    for part in re.split(r"^(?=\[)", text + lines, flags=re.MULTILINE):  # each line into its table, once
        for title, rows in tomllib.loads(part).items():
            tables.setdefault(title, {}).update(rows)
    assert refusals(tomli_w.dumps(tables)) == []


@pytest.mark.parametrize("text", [OPEN + "insecure = true", HTTP + "http_insecure = true", OPEN + CURVE])
def test_what_is_meant_is_taken(text: str) -> None:
    assert refusals(text) == []


@pytest.mark.parametrize(
    "end", ["tcp://127.0.0.1:7001", "tcp://localhost:7001", "tcp://[::1]:7001", "ipc://x"]
)
def test_a_door_of_this_machine_is_not_exposed(end: str) -> None:
    assert refusals(f'{DEVICE}frontend = "{end}"\nbackend = ">tcp://192.0.2.1:1"') == []


@pytest.mark.parametrize("end", ["tcp://*:7001", "tcp://192.0.2.1:7001", "tcp://[::]:7001", "tcp://a.b:7001"])
def test_any_other_door_is(end: str) -> None:
    (said,) = refusals(f'{DEVICE}frontend = "{end}"')
    assert end in said
    assert "more door" not in said


def test_a_door_says_for_itself_that_it_is_meant() -> None:
    table = '{ endpoint = "tcp://*:7001", insecure = true }'
    assert refusals(f"{DEVICE}frontend = {table}") == []
    assert refusals(f'{DEVICE}insecure = true\nfrontend = "tcp://*:7001"') == []
    assert refusals(f'{DEVICE}frontend = [{table}, "tcp://*:7002"]') != []


def test_a_door_that_lets_anybody_in_beside_others_with_keys_is_named() -> None:
    lax = '{ endpoint = "tcp://*:7002", mechanism = "null", anonymous = "push=metrics" }'
    (said,) = refusals(f'{CURVE}{DEVICE}frontend = ["tcp://*:7001", {lax}]')
    assert said == (
        "[[devices]] no. 1: other machines can reach tcp://*:7002, and clients without a key may do this "
        'there: push=metrics. Say anonymous = "none", or insecure = true'
    )


@pytest.mark.parametrize("own", ["", CURVE + 'anonymous = "read=mail"\n', CURVE + 'anonymous = "operate"\n'])
def test_an_http_door_where_everybody_may_read_is_refused_also_with_tls(own: str) -> None:
    tls = 'http_tls_cert = "certificate.pem"\nhttp_tls_key = "key.pem"\n'
    (said,) = [refusal for refusal in refusals(HTTP + tls + own) if "HTTP" in refusal]
    assert "the HTTP door 0.0.0.0:5580, and everybody may read there." in said


def test_an_http_door_with_keys_needs_tls() -> None:
    (said,) = refusals(HTTP + CURVE)
    assert "clear text" in said
    assert "may read" not in said


def test_what_is_open_though_it_is_meant_can_be_told_at_the_start() -> None:
    config = load(None, {"SLUICEMQ_INSECURE": "1", "SLUICEMQ_HOST": "*", "SLUICEMQ_HTTP": "*:5580"}, {})
    assert [door.address for door in exposed(config)][:2] == ["tcp://*:5550", "tcp://*:5551"]
    assert http_exposure(config)


def test_the_check_of_a_configuration_says_it(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(OPEN)
    run = CliRunner().invoke(
        serve, ["--check-config", "--json", "--config", "broker.toml"], standalone_mode=False
    )
    assert run.return_value == 2
    assert "other machines can reach tcp://0.0.0.0:5550" in run.output
    assert '"valid": false' in run.output


def refusals(text: str) -> list[str]:
    file = Path("broker.toml")
    file.write_text(text)
    return [str(problem) for problem in problems_of_exposure(load(file, {}, {}))]
