"""SIGHUP: a running broker takes another configuration as far as it can, says so, and never ends by it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import tomli_w

from sluicemq import Client, Producer
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until


class Reloaded(BrokerProcess):
    """A broker whose file is written anew while it runs."""

    def reload(self, config: dict[str, Any] | str) -> list[str]:
        """Write this over its file, have it read, and return what it says of that."""
        before = len(self.told())
        text = config if isinstance(config, str) else tomli_w.dumps({**self.config, **config})
        (self.folder / "broker.toml").write_text(text)
        self.send_signal(signal.SIGHUP)
        wait_until(
            lambda: any(line.startswith("read ") or line.endswith(" stays") for line in self.told()[before:]),
            what="a word on the new configuration",
        )
        return self.told()[before:]

    def told(self) -> list[str]:
        return [line.partition("SIGHUP: ")[2] for line in self.log_text().splitlines() if "SIGHUP: " in line]


@pytest.fixture(scope="module")
def broker(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    folder = tmp_path_factory.mktemp("reloaded")
    with Reloaded(mongo_uri, f"test_{token_hex(6)}", folder=folder) as running:
        yield running


def test_settings_of_queues_hold_from_then_on(broker: Reloaded) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer, Client(endpoint=broker.doors["smq"]) as client:
        producer.push("mail", b"before").wait(TIMEOUT)

        told = broker.reload({"queues": {"mail": {"priority": 7, "max_attempts": 1}}})
        producer.push("mail", b"after").wait(TIMEOUT)

        assert told == [
            "now [queues.mail] max_attempts: 13 -> 1",
            "now [queues.mail] priority: 0 -> 7",
            "read broker.toml: 2 settings changed, 0 need a restart",
        ]
        assert {job["payload"]: job["priority"] for job in client.peek("mail")} == {b"before": 0, b"after": 7}
        for job in client.jobs.reserve(
            "mail", 2, TIMEOUT
        ):  # the older one too: it says nothing of its attempts
            job.rollback("no")
        wait_until(
            lambda: len(client.jobs.list("mail", "dead")) == 2, what="the end of both after one attempt"
        )


def test_what_needs_a_restart_is_named_and_changes_nothing(broker: Reloaded) -> None:
    config = {"broker": {**broker.config["broker"], "lease": 40, "mongodb_uri": "mongodb://bob:s3cret@h"}}
    told = broker.reload({**config, "queues": {"a": {"database": "elsewhere"}}, "devices": []})
    expected = ("[broker] mongodb_uri: ", "[broker] lease: 15.0 -> 40.0", "[queues.a] database: nothing -> ")
    for change in (*expected, "number of [[devices]]: 3 -> 0"):
        assert any(line.startswith(f"needs a restart: {change}") for line in told), change
    assert told[-1].endswith(" 4 need a restart")
    assert "s3cret" not in broker.log_text()
    with Client(endpoint=broker.doors["smq"]) as client, Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("a", b"x").wait(TIMEOUT)
        assert [job["payload"] for job in client.peek("a")] == [b"x"]


def test_a_file_that_is_not_valid_changes_nothing_and_all_that_is_wrong_is_told(broker: Reloaded) -> None:
    told = broker.reload("[broker]\nlease = -1\nlog_levl = 'debug'\n[queues.mail]\nttl = 'soon'\n")
    assert told == [
        "broker.toml: [broker]: log_levl: unknown key; did you mean log_level?",
        "broker.toml: [broker] lease: expected seconds, more than 0, at most ten years; got -1",
        (
            "broker.toml: [queues.mail] ttl: expected seconds above 0, at most ten years; "
            "or a text such as 90s, 5m, 1h30m or 2d; got 'soon'"
        ),
        "the configuration is not valid, the former one stays",
    ]
    assert broker.reload("[broker\n")[0].startswith("broker.toml: is not TOML: ")
    with Client(endpoint=broker.doors["smq"]) as client:
        client.ping()


def test_the_level_and_the_form_of_the_log_change(broker: Reloaded) -> None:
    form = {"log_format": "json", "log_level": "error"}
    told = broker.reload({"broker": {**broker.config["broker"], **form}})
    assert 'now [broker] log_level: \\"info\\" -> \\"error\\""' in "".join(told)
    assert json.loads(broker.log_text().splitlines()[-1])["message"].startswith("SIGHUP: read broker.toml")
    assert len(broker.reload({})) == 3  # told although the level was error until then


def test_no_number_of_signals_ends_it(mongo_uri: str, database: str, tmp_path: Path) -> None:
    broker = BrokerProcess(mongo_uri, database, folder=tmp_path)
    broker.launch()
    try:
        wait_until(lambda: ignores_hangups(broker.pid), what="the broker's first statements")
        for _ in range(20):
            broker.send_signal(signal.SIGHUP)
        broker.wait_ready()
        for _ in range(200):
            broker.send_signal(signal.SIGHUP)
        broker.wait_log("SIGHUP: read broker.toml: 0 settings changed")
        assert (tmp_path / "ready.json").exists()
        broker.send_signal(signal.SIGHUP)
        assert broker.terminate() == 0
        assert not (tmp_path / "ready.json").exists()
    finally:
        broker.close()


def ignores_hangups(pid: int) -> bool:
    """Whether SIGHUP would not end it: it is ignored, or caught."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    masks = int(lines["SigIgn"], 16) | int(lines["SigCgt"], 16)
    return bool(masks & (1 << (signal.SIGHUP - 1)))
