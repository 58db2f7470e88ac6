"""The core of the broker runs without its parts: streams, history and the dashboard."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicemq import BadVerbError, Client, Producer, Publisher, Reader, Worker
from sluicemq_broker.config import Config, ConfigError, load
from sluicemq_broker.process.server import Server
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

OF_PARTS = ("sluicemq_broker.parts", "sluicemq_broker.streams", "sluicemq_broker.history")


class QueueOnlyBroker(BrokerProcess):
    program = (str(Path(__file__).parent / "queue_only_broker.py"),)


@pytest.fixture
def broker(mongo_uri: str, database: str) -> Iterator[QueueOnlyBroker]:
    with QueueOnlyBroker(mongo_uri, database, config={"broker": {"http": "127.0.0.1:0"}}) as broker:
        yield broker


def test_a_broker_without_parts_takes_jobs_works_them_off_and_stops(broker: QueueOnlyBroker) -> None:
    done: list[bytes] = []
    endpoint = broker.doors["smq"]
    with (
        Producer(endpoint=endpoint) as producer,
        Worker("mail", lambda job: done.append(job.payload), endpoint=endpoint),
    ):
        for payload in (b"a", b"b", b"c"):
            producer.push("mail", payload)
        wait_until(lambda: len(done) == 3, what="the work")
    web = Web(broker.http)
    answers = {path: web.get(path) for path in ("/healthz", "/readyz", "/metrics", "/api/v1/queues")}
    assert sorted(done) == [b"a", b"b", b"c"]
    assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert "sluicemq_jobs_pushed_total" in answers["/metrics"].body.decode()
    assert broker.terminate() == 0


def test_a_broker_without_parts_refuses_their_verbs_and_paths_by_name(broker: QueueOnlyBroker) -> None:
    endpoint = broker.doors["smq"]
    with Client(endpoint=endpoint) as client, pytest.raises(BadVerbError, match="STREAMS"):
        client.streams.list()
    with Client(endpoint=endpoint) as client, pytest.raises(BadVerbError, match="HISTORY"):
        client.history(queue="mail")
    with Publisher(endpoint=endpoint) as publisher, pytest.raises(BadVerbError, match="PUBLISH"):
        publisher.publish("prices", b"topic", b"payload").wait(TIMEOUT)
    with Reader("prices", endpoint=endpoint) as reader, pytest.raises(BadVerbError, match="READ"):
        next(iter(reader))
    web = Web(broker.http)
    paths = ("/", "/api/v1/streams", "/api/v1/live", "/api/v1/incidents")
    assert {web.get(path).status for path in paths} == {404}


def test_a_broker_without_parts_imports_none_of_them(broker: QueueOnlyBroker) -> None:
    assert broker.terminate() == 0
    imported = json.loads((broker.folder / "modules.json").read_text())
    assert "sluicemq_broker.http.metrics" in imported
    assert [name for name in imported if name.startswith(OF_PARTS)] == []


@pytest.mark.parametrize(
    "text",
    ["[streams.prices]\nmax_messages = 5\n", '[[routes]]\nstream = "prices"\nqueue = "mail"\n'],
    ids=["streams", "routes"],
)
def test_a_table_that_no_part_reads_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    config: Config = load(file, {}, {})
    nothing: Any = None
    with pytest.raises(ConfigError, match="runs without that part"):
        Server(config, nothing, alone=True)
