"""README and docs are true: their samples run as they stand; the life of a job is as the code has it."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from sluicemq import Client, DeadError, Producer, Publisher
from sluicemq.protocol import wire
from sluicemq_broker.config import load
from sluicemq_broker.job import State
from support.broker_process import BrokerProcess
from support.keyed_broker import keyed_broker
from support.ports import free_port
from support.raw_sockets import receive
from support.samples import block
from support.waiting import wait_until

DOORS = {
    5550: "smq",
    5551: "push",
    5552: "pull",
    5553: "req",
    5554: "rep",
    5555: "pub",
    5556: "sub",
    5557: "commit",
}


#: Run where there are forwarders with streams.
CLONE = "streams: clone"


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, f"readme-{free_port()}") as process:
        yield process


def program(broker: BrokerProcess, name: str, variables: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    """Run a block as it stands, but for the ports of this broker."""
    code = re.sub(r"tcp://127\.0\.0\.1:(\d+)", lambda found: broker.doors[DOORS[int(found[1])]], block(name))
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})


@contextmanager
def running(broker: BrokerProcess, client: Client, name: str) -> Iterator[subprocess.Popen[str]]:
    """The same, until the block is left and the broker has noticed that it has gone."""
    process = program(broker, name)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_until(
            lambda: not any(queue.workers for queue in client.queues.list() if queue.name == "default")
        )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


def test_the_life_of_a_job_is_drawn_as_the_code_has_it() -> None:
    assert block("life of a job").strip() in (inspect.getdoc(State) or "").replace("\n    ", "\n")


# ------------------------------------------------------------------ the library


@pytest.mark.parametrize(
    ("test", "passed"), [("testing", 4), pytest.param("testing real", 1, marks=pytest.mark.full)]
)
def test_sample_tests_of_the_page_pass(tmp_path: Path, test: str, passed: int) -> None:
    (tmp_path / "shop.py").write_text(block("testing shop"))
    (tmp_path / "test_shop.py").write_text(block(test))
    (tmp_path / "pytest.ini").write_text(block("testing ini"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


@pytest.mark.parametrize("name", ["readme", "first page"])
def test_the_first_page_pushes_and_works(broker: BrokerProcess, name: str) -> None:
    process = program(broker, name, {"SLUICEMQ_ENDPOINT": broker.doors["smq"]})
    try:
        assert line(process) == "b'hello'"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_example_of_namespaces_prints_what_it_says(broker: BrokerProcess) -> None:
    output, _ = program(broker, "namespaces", {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}).communicate(
        timeout=60
    )
    assert output.splitlines() == ["1", "[b'hello']", "1"]


def test_the_example_of_a_search_prints_what_it_finds(broker: BrokerProcess, client: Client) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("found", b"x", id="f1", kind="receipt", max_attempts=1)
    claim = client.jobs.reserve("found", 1, 60)
    claim.jobs[0].reject("a timeout")
    output, _ = program(broker, "find", {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}).communicate(timeout=60)
    assert output.splitlines() == ["found f1 b'x'"]


def test_the_outbox_example_pushes(broker: BrokerProcess, mongo_uri: str, database: str) -> None:
    _, _ = program(broker, "outbox", {"MONGODB_URI": mongo_uri}).communicate(timeout=60)
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        (post,) = mongo.shop.sluicemq_outbox.find()
        assert (post["queue"], post["payload"], post["headers"]) == ("mail", b'{"order":7}', {"priority": 9})
        mongo.drop_database("shop")


def test_the_transaction_example_pays_once(broker: BrokerProcess, client: Client, mongo_uri: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo.bank.accounts.insert_one({"_id": "ann", "balance": 0})
        where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"], "MONGODB_URI": mongo_uri}
        process = program(broker, "commit in", where)
        try:
            with Producer(endpoint=broker.doors["smq"]) as producer:
                for _ in range(3):
                    producer.push_json("transfers", {"to": "ann", "amount": 5}).wait(60)
            wait_until(lambda: mongo.bank.accounts.find_one() == {"_id": "ann", "balance": 15})
            process.terminate()
            assert process.wait(60) == 0
            assert mongo.bank.accounts.find_one() == {"_id": "ann", "balance": 15}
            assert client.jobs.list("transfers") == []
        finally:
            process.kill()
            process.communicate()
            mongo.drop_database("bank")


def test_the_example_of_values_prints_what_it_says(broker: BrokerProcess) -> None:
    where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
    output, _ = program(broker, "values", where).communicate(timeout=60)
    assert output == "6\n"


def test_the_example_of_tasks_prints_what_it_says(broker: BrokerProcess) -> None:
    where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
    output, _ = program(broker, "tasks", where).communicate(timeout=60)
    assert output.splitlines() == [
        "Hello Ann, of 2001",
        "HELLO ANN, OF 2001",
        "A, B!",
        "greet: argument 'guest': Expected `object`, got `str`",
    ]


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        (
            "moved from celery",
            ["ann@example.org: Ann has paid 29", "['ann@example.org: 1 euros', 'ann@example.org: 2 euros']"],
        ),
        ("moved from dramatiq", ["dog.jpg is 80 wide"]),
        ("moved from rq", ["sent to ann@example.org"]),
        ("moved from arq", ["['/a by session 1', '/b by session 1']"]),
    ],
)
def test_a_module_moved_from_another_queue_runs(broker: BrokerProcess, name: str, printed: list[str]) -> None:
    where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
    output, _ = program(broker, name, where).communicate(timeout=60)
    assert output.splitlines() == printed


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("asyncio", ["1", "b'small dog.jpg'", "[b'small a', b'small b']"]),
        ("asyncio lifespan", ["50"]),
    ],
)
def test_the_examples_of_asyncio_print_that(broker: BrokerProcess, name: str, printed: list[str]) -> None:
    where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
    output, _ = program(broker, name, where).communicate(timeout=60)
    assert output.splitlines() == printed


def test_the_example_of_a_join_prints_what_it_says(broker: BrokerProcess) -> None:
    where = {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
    output, _ = program(broker, "join", where).communicate(timeout=60)
    assert output.splitlines() == ["b'7 words'"]


def test_the_scheduled_task_is_declared_and_runs(broker: BrokerProcess, client: Client) -> None:
    process = program(broker, "scheduled task", {"SLUICEMQ_ENDPOINT": broker.doors["smq"]})
    try:
        wait_until(  # another sample has one of this name in another queue
            lambda: (
                ("shop.report", "reports")
                in [(schedule.name, schedule.queue) for schedule in client.schedules.list()]
            )
        )
        client.schedules.run("shop.report")
        assert line(process) == "1 days"
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_the_example_of_results_claims_and_pops_prints_what_it_says(broker: BrokerProcess) -> None:
    output, _ = program(broker, "results").communicate(timeout=60)
    assert output.splitlines() == ["b'abab'", "b'9999'", "b'9999'", "2"]


def test_the_example_of_streams_publishes_and_reads(broker: BrokerProcess) -> None:
    output, _ = program(broker, "streams").communicate(timeout=60)
    number, *read = output.splitlines()
    assert number == "1001"
    assert len(read) == 101
    assert read[0].startswith("4 orders.3.paid b'3' ")
    assert read[-1].startswith("1001 orders.3.sent b'x' ")


def test_the_subscription_works_on_what_is_published(broker: BrokerProcess, client: Client) -> None:
    process = program(broker, "subscription")
    try:
        with Publisher(endpoint=broker.doors["smq"]) as publisher:
            published = publisher.publish("prices", "eur.usd", b"1.0842")
        assert line(process) == f"{published.sequence} eur.usd b'1.0842'"
    finally:
        process.kill()
        process.communicate()
        wait_until(
            lambda: not any(subscription.holder for subscription in client.subscriptions.list("prices"))
        )


def test_the_example_of_several_workers_ends_with_one_signal(broker: BrokerProcess) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("mails", b"x")
        process = program(broker, "several workers")
        assert line(process) == "mail b'x'"
        producer.push("bills", b"y")
        assert line(process) == "bill b'y'"
    process.terminate()
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0


def test_the_example_of_traces_is_one_trace(broker: BrokerProcess) -> None:
    output, _ = program(broker, "traces").communicate(timeout=60)
    trace, *spans = output.splitlines()
    assert trace == "1 trace"
    images, thumbnails = (
        [f"{name} {queue}" for name in ("send", "wait", "process", "commit")]
        for queue in ("traced-images", "traced-thumbnails")
    )
    assert sorted(spans) == sorted(["upload", *images, *thumbnails])


# ---------------------------------------------------------------- plain sockets


def test_the_quick_start_copies_and_runs(broker: BrokerProcess, client: Client) -> None:
    # Given the producer, which ends before anybody works
    assert program(broker, "quick start: producer").wait(20) == 0
    # When the worker starts, and an asker asks
    with running(broker, client, "quick start: worker") as worker:
        assert line(worker) == "b'hello'"
        answer, _ = program(broker, "quick start: client").communicate(timeout=20)
    # Then the worker's answer is the asker's
    assert answer == "[b'done']\n"


def test_the_examples_of_push_and_pull_fit_together(broker: BrokerProcess, client: Client) -> None:
    # When the producer of the docs has sent and gone
    assert program(broker, "quick start: push with headers").wait(20) == 0

    # Then what names a queue is there, the higher priority first, with its headers
    def invoices() -> list[dict[str, Any]]:
        there = any(queue.name == "invoices" for queue in client.queues.list())
        return client.peek("invoices") if there else []

    wait_until(lambda: len(invoices()) == 2, what="two invoices")
    first, second = invoices()
    assert (first["id"], first["payload"], first["priority"]) == ("invoice-17", b"with headers", 9)
    assert (first["max_attempts"], first["headers"]) == (3, {"lang": "de"})
    assert second["payload"] == b"to another queue"
    # And what names none goes to the worker of the device's queue
    with running(broker, client, "frames: pull") as worker:
        assert line(worker) == "b'to the queue of the device'"


def test_the_examples_of_req_and_rep_answer_each_other(broker: BrokerProcess, client: Client) -> None:
    with running(broker, client, "frames: rep"), Producer(endpoint=broker.doors["smq"]) as producer:
        # When the asker of the docs asks for two sums, one of them twice, and once nonsense
        asking = program(broker, "frames: req")
        # Then it hears the result, the stored result, an id and an error
        output, _ = asking.communicate(timeout=60)
        assert output.splitlines() == ["b'6'", "b'6'", "b'sum-2'", "BAD_HEADERS"]
        # And the worker rejects what will never work, and gives back what may work later
        with pytest.raises(DeadError, match="invalid literal"):
            producer.call("default", b"no number", timeout=60)
        with pytest.raises(DeadError, match="nothing yet"):
            producer.call("default", b"", timeout=60, max_attempts=1)


def test_the_dealer_example_hears_all_answers_by_their_number(broker: BrokerProcess, client: Client) -> None:
    with running(broker, client, "quick start: worker"):
        output, _ = program(broker, "frames: dealer").communicate(timeout=60)
    assert output.splitlines() == [f"b'{number}' b'done'" for number in range(3)]


def test_the_example_of_a_dealer_shows_a_rejection_too(broker: BrokerProcess, client: Client) -> None:
    with running(broker, client, "frames: rep"):  # for which "question 1" is no sum
        asking = program(broker, "frames: dealer")
        output, _ = asking.communicate(timeout=60)
    assert asking.returncode == 0
    assert [line.split()[:2] for line in output.splitlines()] == [
        [f"b'{number}'", "b'ERROR'"] for number in range(3)
    ]


def test_the_example_of_a_socket_with_keys_gets_in(mongo_uri: str, database: str, tmp_path: Path) -> None:
    with keyed_broker(mongo_uri, database, tmp_path) as keyed:
        assert program(keyed.process, "security: pyzmq", keyed.variables()).wait(60) == 0
        with keyed.admin() as admin:
            assert [job.payload for job in admin.pop("default", wait=60)] == [b"cat.jpg"]


@pytest.mark.full
def test_the_first_broker_that_leaves_its_host_and_its_first_client(
    mongo_uri: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: the broker of the page, with a MongoDB and ports of the test
    monkeypatch.setenv("PATH", f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    port = str(free_port())
    serve, clients = (block(f"security: {name}").replace("5550", port) for name in ("broker", "clients"))
    serve = serve.replace("sluicemq serve", "exec sluicemq serve --no-devices")
    env = os.environ | {"SLUICEMQ_MONGODB_URI": mongo_uri, "SLUICEMQ_DATABASE": database}
    env["SLUICEMQ_HTTP"] = "127.0.0.1:0"
    with subprocess.Popen(["sh", "-ec", serve], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as broker:
        try:
            # When: the client of the page comes; the broker may not be there yet
            wait_until((tmp_path / "sluicemq.toml").exists, what="the configuration")
            ready = {"SLUICEMQ_KEY_FILE": "admin.key", "SLUICEMQ_ENDPOINT": f"tcp://127.0.0.1:{port}"}
            ping = 'SLUICEMQ_SERVER_KEY="$(sluicemq key show broker.key)" sluicemq ping --wait 60'
            subprocess.run(["sh", "-ec", ping], cwd=tmp_path, env=os.environ | ready, check=True)
            done = subprocess.run(["sh", "-ec", clients], cwd=tmp_path, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
            assert b"added mailer" in done.stdout
        finally:
            broker.terminate()


def test_the_examples_of_publisher_and_subscriber_meet(broker: BrokerProcess) -> None:
    subscriber, publisher = program(broker, "frames: sub"), program(broker, "frames: pub")
    try:
        heard = line(subscriber)
    finally:
        for process in (subscriber, publisher):
            process.kill()
            process.communicate()
    assert re.fullmatch(r"\[b'news\.\d+', b'body'\]", heard)


def test_the_example_of_a_device_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text(block("devices"))
    config = load(file, {}, {})
    assert [(device.kind, device.queue, device.ack) for device in config.devices] == [
        ("streamer", "mail", "explicit")
    ]


def test_the_examples_of_worker_and_device_work(mongo_uri: str, database: str, tmp_path: Path) -> None:
    # Given the device of the docs, on free ports
    ports = {port: free_port() for port in ("5561", "5562", "5567")}

    def elsewhere(text: str) -> str:
        text = re.sub(r"tcp://127\.0\.0\.1:(\d+)", lambda found: f"tcp://127.0.0.1:{ports[found[1]]}", text)
        return text.replace("ipc:///tmp/mail.sock", f"ipc://{tmp_path}/mail.sock")

    config = tomllib.loads(elsewhere(block("devices")))
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        worker = subprocess.Popen(
            [sys.executable, "-u", "-c", elsewhere(block("pull worker"))], stdout=subprocess.PIPE, text=True
        )
        try:
            # When something is pushed
            with Producer(endpoint=broker.doors["smq"]) as producer:
                producer.push("mail", b"letter")
            # Then the worker of the docs has it, and commits it
            assert line(worker) == "b'letter'"
            with Client(endpoint=broker.doors["smq"]) as client:
                wait_until(lambda: client.counters().counters.get("committed") == 1, what="the commit")
        finally:
            worker.kill()
            worker.communicate()


# ------------------------------------------------------------------------- SMQ/1


def test_the_session_of_smq1_goes_as_it_is_shown(broker: BrokerProcess, client: Client) -> None:
    """``tests/unit/test_docs.py`` holds that the hex shown is that of the arrays shown."""
    lines = re.findall(r"^([→←]) ([A-Z]+) (\[.*\])$", block("smq1 session"), re.MULTILINE)
    assert {verb for _, verb, _ in lines} > {"HELLO", "PUSH", "READY", "DELIVER", "SETTLE"}
    if any(queue.name == "mail" for queue in client.queues.list()):
        client.queues.purge("mail").result()  # jobs of other samples
    real: dict[bytes, bytes] = {}  # receipts: as they are shown, and as this broker gave them
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(broker.doors["smq"])
    try:
        for arrow, verb, text in lines:
            array = meant(text)
            if arrow == "→":
                dealer.send_multipart(wire.encode(verb.encode(), *known_as(array, real)))
                continue
            came = answer(dealer)
            if verb == "DELIVER":
                real[array[2][0][0]] = came.fields[1][0][0]
                array[2][0][6], array[3] = came.fields[1][0][6], came.fields[2]  # when it came, and now
            if came.number == 1 and isinstance(
                came.fields[0], dict
            ):  # what is this version's and this broker's own
                array[1] |= {key: came.fields[0][key] for key in ("broker", "features", "name")}
            assert (came.verb.decode(), [came.number, *came.fields]) == (verb, known_as(array, real))
    finally:
        dealer.close(0)
        context.term()


def meant(text: str) -> list[Any]:
    known: dict[str, Any] = {"__builtins__": {}, "nil": None, "true": True, "false": False}
    array: list[Any] = eval(text, known)  # noqa: S307 - a page of ours
    return array


def known_as(value: Any, real: dict[bytes, bytes]) -> Any:
    if isinstance(value, list):
        return [known_as(item, real) for item in value]
    return real.get(value, value) if isinstance(value, bytes) else value


def answer(dealer: zmq.Socket[bytes]) -> wire.Message:
    """The next message that is no PING."""
    while (message := wire.decode(receive(dealer))).verb == wire.PING:
        pass
    return message
