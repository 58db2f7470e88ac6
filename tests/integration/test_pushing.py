"""How jobs come in, and queues that are not there: only a push makes one."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from pymongo import WriteConcern

from sluicemq import BadHeadersError, Client, DuplicateError, NotFoundError, Worker
from sluicemq.cli.app import app
from sluicemq_broker.store.connection import durable
from support.broker_under_test import BrokerUnderTest
from support.own_queue import LONG, SECONDS, OwnQueue
from support.waiting import wait_until


def test_a_queue_is_made_when_something_is_first_pushed(jobs: OwnQueue) -> None:
    # beanstalkd, tubes: a tube is made on demand when it is first used.
    name = f"{jobs.queue}-first"
    assert all(row.name != name for row in jobs.client.queues.list())
    jobs.producer.push(name, b"x").wait(SECONDS)
    # A count that was under way when it came is corrected in a moment.
    wait_until(
        lambda: [row.ready for row in jobs.client.queues.list() if row.name == name] == [1],
        SECONDS,
        "its job",
    )


def test_each_of_many_jobs_that_are_pushed_at_once_has_an_answer_of_its_own(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: many in one request: a result for each, in their order.
    good, bad, last = jobs.producer.push_many(
        jobs.queue, [b"1", {"payload": b"2", "priority": 256}, {"payload": b"3", "id": "third"}]
    )
    good.wait(SECONDS)
    last.wait(SECONDS)
    with pytest.raises(BadHeadersError):
        bad.wait(SECONDS)
    assert (bad.position, last.id) == (1, "third")
    assert jobs.in_order(2) == [b"1", b"3"]


def test_a_push_that_is_repeated_is_stored_once(jobs: OwnQueue) -> None:
    # Not so in Zaqar (messages, POST): a post that is tried again is there twice.
    first = jobs.push(b"1", id="mine", dedupe_id="piece of work")
    again = jobs.producer.push(jobs.queue, b"1", id=first, dedupe_id="piece of work")
    again.wait(SECONDS)
    other = jobs.producer.push(jobs.queue, b"1", id="another", dedupe_id="piece of work")
    with pytest.raises(DuplicateError) as refused:
        other.wait(SECONDS)
    assert (again.existed, refused.value.id) == (True, first)
    assert jobs.ids("ready") == [first]


def test_a_push_says_in_which_state_the_job_of_its_id_is(jobs: OwnQueue) -> None:
    jobs.push(b"1", id="dead")
    jobs.take().reject("no use")
    jobs.push(b"1", id="later", delay=LONG)
    jobs.push(b"1", id="ready")
    receipts = jobs.producer.push_many(
        jobs.queue, [{"payload": b"2", "id": name} for name in ("dead", "new", "later", "ready")]
    )
    jobs.producer.flush(SECONDS)
    assert [receipt.existed for receipt in receipts] == [True, False, True, True]
    assert [receipt.state for receipt in receipts] == ["dead", None, "scheduled", "ready"]


def test_every_job_of_a_burst_finds_the_worker_that_waits(jobs: OwnQueue) -> None:
    # Not so in keuss (signaller): of pushes within 50 ms the last ones wake nobody: the window has no event
    # at its end.
    with jobs.waiting_worker() as came:
        pushed = [jobs.producer.push(jobs.queue, b"burst").id for _ in range(200)]
        wait_until(lambda: sorted(came) == sorted(pushed))


def test_what_is_confirmed_was_written_by_a_majority(jobs: OwnQueue) -> None:
    # Not so in keuss (mongo backend): writes go out without a write concern: what was confirmed may be rolled
    # back.
    assert durable(jobs.collection.database).write_concern == WriteConcern("majority")


LOOKS: list[Callable[[Client, str], Any]] = [
    lambda client, name: client.peek(name),
    lambda client, name: client.show(name, "id"),
    lambda client, name: client.purge(name),
    lambda client, name: client.delete(name),
    lambda client, name: client.cancel(name, "id"),
    lambda client, name: client.promote(name, "id"),
    lambda client, name: client.change(name, "id", priority=1),
    lambda client, name: client.redrive(name),
    lambda client, name: client.redrive("late", to=name),
    lambda client, name: client.pause(name),
    lambda client, name: client.resume(name),
    lambda client, name: client.result(name, "id", 0.1),
    lambda client, name: client.reserve(name, 1),
    lambda client, name: client.pop(name, 1),
]
QUEUE = "invoices"


@pytest.fixture(scope="module")
def client(shared_broker: BrokerUnderTest) -> Client:
    shared_broker.make(QUEUE)
    return shared_broker.admin


def names(client: Client) -> set[str]:
    return {queue["name"] for queue in client.queues()}


@pytest.mark.parametrize("look", LOOKS)
def test_asking_for_an_unknown_queue_makes_none(client: Client, look: Callable[[Client, str], Any]) -> None:
    with pytest.raises(NotFoundError, match=r"no queue 'invoicse'.*; did you mean 'invoices'\?"):
        look(client, "invoicse")
    assert "invoicse" not in names(client)


@pytest.mark.parametrize("command", ["peek", "pop", "work --print", "pause"])
def test_a_command_on_an_unknown_queue_is_refused(client: Client, jobs: OwnQueue, command: str) -> None:
    command, *options = command.split()
    ran = CliRunner().invoke(app, ["--endpoint", jobs.endpoint, command, "invioces", *options])
    assert ran.exit_code == 1
    assert "did you mean 'invoices'?" in ran.stderr
    assert "invioces" not in names(client)


def test_a_queue_that_another_broker_has_made_is_known(client: Client) -> None:
    assert client.peek(QUEUE) == []


def test_a_queue_of_the_configuration_is_there_before_its_first_push(client: Client) -> None:
    assert client.peek("late") == []


@pytest.mark.parametrize("pop", [False, True])
def test_a_worker_waits_for_its_queue(jobs: OwnQueue, caplog: pytest.LogCaptureFixture, *, pop: bool) -> None:
    # Given a worker whose queue nobody has pushed to
    queue, came = f"{jobs.queue}-first", list[bytes]()
    with Worker(queue, lambda job: came.append(job.payload), prefetch=9, pop=pop, endpoint=jobs.endpoint):
        wait_until(lambda: "The worker waits for it" in caplog.text, SECONDS)
        assert queue not in names(jobs.client)
        jobs.producer.push(queue, b"first").wait(SECONDS)
        wait_until(lambda: came == [b"first"], SECONDS)
    assert f"queue {queue}: its first push here comes from" in jobs.broker.process.log_text()


def test_a_worker_gets_jobs_of_a_queue_made_there(jobs: OwnQueue, caplog: pytest.LogCaptureFixture) -> None:
    queue, came = f"{jobs.queue}-elsewhere", list[bytes]()
    jobs.push(b"there")
    with Worker(queue, lambda job: came.append(job.payload), endpoint=jobs.endpoint):
        wait_until(lambda: "The worker waits for it" in caplog.text, SECONDS)
        # When its collection appears, with a job, which this broker is told by nobody
        jobs.collection.aggregate([{"$out": f"queue.{queue}"}])
        wait_until(lambda: came == [b"there"], SECONDS)


def test_a_worker_that_does_not_wait_is_told(client: Client, jobs: OwnQueue) -> None:
    worker = Worker("invoicesss", lambda _job: None, wait=False, endpoint=jobs.endpoint)
    with pytest.raises(NotFoundError, match="did you mean 'invoices'"):
        worker.run()
    assert "invoicesss" not in names(client)


def test_a_leaving_worker_is_waited_with_no_more(jobs: OwnQueue, caplog: pytest.LogCaptureFixture) -> None:
    queue = f"{jobs.queue}-left"
    with Worker(queue, lambda _job: None, endpoint=jobs.endpoint):
        wait_until(lambda: "The worker waits for it" in caplog.text, SECONDS)
    jobs.producer.push(queue, b"stays").wait(SECONDS)
    assert [row["payload"] for row in jobs.client.peek(queue)] == [b"stays"]
    assert next(row for row in jobs.client.queues() if row["name"] == queue)["workers"] == 0
