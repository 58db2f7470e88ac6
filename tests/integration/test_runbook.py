"""The runbook has a section for each alarm, and its commands are typed at a broker that has the trouble."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner, Result

from integration.test_deploy_metrics import ALERTS, DASHBOARD, ROOT
from sluicemq import Client, Producer, Publisher, SluiceError, Subscription
from sluicemq.cli.app import app
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.waiting import TIMEOUT

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

PAGE = (ROOT / "docs" / "runbook.md").read_text()
#: The text of each section by its heading.
SECTIONS = dict(section.split("\n\n", 1) for section in PAGE.split("\n## ")[1:])
RULES = re.findall(r"- alert: (\w+)\n.*?for: (\w+)\n\s+labels:\n\s+severity: (\w+)", ALERTS, re.DOTALL)
NAMES = [name for name, _, _ in RULES]
#: Programs of the host and of MongoDB.
OF_THE_HOST = {"iostat", "journalctl", "mongosh", "ss", "systemctl"}


def commands(name: str) -> list[str]:
    """The lines of the blocks, and what stands in the text as ``sluicemq …`` with its arguments."""
    text = SECTIONS[name]
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
             for line in block.splitlines()]  # fmt: skip
    return lines + re.findall(r"`(sluicemq [a-z]+ [^`]+)`", text)


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    config = {"broker": {"http": "127.0.0.1:0"}}
    with BrokerProcess(mongo_uri, f"runbook_{os.getpid()}", config=config) as broker:
        yield broker


def test_each_alarm_has_its_section_and_each_section_its_alarm() -> None:
    assert len(NAMES) == len(re.findall(r"- alert: ", ALERTS)) > 10
    assert list(SECTIONS) == NAMES


@pytest.mark.parametrize(("name", "wait", "severity"), RULES)
def test_a_section_says_when_its_rule_fires_and_when_it_is_over(name: str, wait: str, severity: str) -> None:
    after_that = after(wait) if wait == "0m" else f"after {wait}"
    assert SECTIONS[name].startswith(f"*{severity}*, {after_that}. ")
    assert re.findall(r"^\*Over\* when ", SECTIONS[name], re.MULTILINE)


def after(wait: str) -> str:
    return "at once" if wait == "0m" else wait


def test_each_rule_names_its_section() -> None:
    urls = re.findall(r"- alert: (\w+)\n(?:(?!- alert).*\n)*?\s+runbook_url: (\S+)", ALERTS)
    base = "https://github.com/sluicemq/sluicemq/blob/main/docs/runbook.md"
    assert urls == [(name, f"{base}#{name.lower()}") for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_section_names_panels_that_grafanas_dashboard_has(name: str) -> None:
    [line] = re.findall(r"^- \*Grafana\*: (.*)$", SECTIONS[name], re.MULTILINE)
    named = re.findall(r'"([^"]+)"', line)
    assert named
    assert set(named) <= {panel["title"] for panel in DASHBOARD["panels"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_section_can_be_typed(
    name: str, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue = name.lower()
    for at, command in enumerate(commands(name)):
        if command.split()[0] in OF_THE_HOST:
            continue
        ids = jobs(broker, queue, at) if "QUEUE" in command else {}
        if "NAME" in command:
            run(broker, "user", "add", queue, "push=x", "--token")
        with held(broker, queue) if "STREAM" in command else nullcontext():
            type_it(shlex.split(with_names(command, queue, ids)), broker)


def type_it(words: list[str], broker: BrokerProcess) -> None:
    if words[0] == "curl":
        assert Web(broker.http).get(words[1].removeprefix("http://HOST:5580")).status == 200
        return
    assert words[0] == "sluicemq"
    result = run(broker, *words[1:])
    assert result.exit_code == 0, (words, result.output)


def run(broker: BrokerProcess, *words: str) -> Result:
    return CliRunner().invoke(app, ["--endpoint", broker.doors["smq"], *words], input="y\n")


def jobs(broker: BrokerProcess, queue: str, at: int) -> dict[str, str]:
    """Make a dead letter and a delayed job; return the id that each command wants."""
    door, delayed, dead = broker.doors["smq"], f"delayed-{at}", f"dead-{at}"
    with Client(timeout=30, endpoint=door) as client, Producer(endpoint=door) as producer:
        producer.push(queue, b"x", id=dead).wait(TIMEOUT)
        with client.jobs.reserve(queue, 100) as claim:
            for job in claim.jobs:
                job.reject("no such customer")
        producer.push(queue, b"x", id=delayed, delay=1000).wait(TIMEOUT)
    return {"dead-letters redrive": dead, "jobs promote": delayed, "jobs show": delayed}


@contextmanager
def held(broker: BrokerProcess, stream: str) -> Iterator[None]:
    """A subscription that somebody holds."""
    works = Event()
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish(stream, "topic", b"x").wait(TIMEOUT)
    holder = Subscription(stream, "sums", lambda _batch: works.set(), endpoint=broker.doors["smq"])
    holder.start()
    try:
        assert works.wait(TIMEOUT)
        yield
    finally:
        with suppress(SluiceError):  # its hold was taken from it
            holder.stop()


def with_names(command: str, queue: str, ids: dict[str, str]) -> str:
    verb = " ".join(command.split()[1:3])
    names = {"QUEUE": queue, "STREAM": queue, "SUBSCRIPTION": "sums", "NAME": queue, "ID": ids.get(verb, "")}
    return re.sub(r"\b(QUEUE|STREAM|SUBSCRIPTION|NAME|ID)\b", lambda found: names[found[1]], command)
