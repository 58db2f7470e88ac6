"""The namespaces of a client, each of their verbs at a real broker; and the methods of 0.3."""

import inspect
import threading
from secrets import token_hex
from typing import Any

import pytest

from clients.scripted_broker import ScriptedBroker
from sluicemq import BadFramesError, Client, NotFoundError, Publisher, Subscription, TimeoutError
from sluicemq._deprecated import OLD_NAMES
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import wire
from support.own_queue import LONG, SECONDS, OwnQueue
from support.waiting import TIMEOUT, wait_until


@pytest.fixture
def client(jobs: OwnQueue) -> Client:
    return jobs.client


def bury(jobs: OwnQueue, *reasons: str) -> list[str]:
    """Make dead letters, which died of these reasons."""
    ids = [jobs.push() for _ in reasons]
    for job, reason in zip(jobs.reserve(len(reasons)), reasons, strict=True):
        job.reject(reason)
    return ids


class TestQueues:
    def test_a_queue_is_listed_counted_and_purged(self, jobs: OwnQueue, client: Client) -> None:
        jobs.push()
        assert jobs.queue in {queue.name for queue in client.queues.list()}
        assert client.queues.get(jobs.queue).ready == 1
        assert client.queues.purge(jobs.queue).result() == 1
        assert client.queues.get(jobs.queue).ready == 0

    def test_a_queue_is_paused_and_resumed(self, jobs: OwnQueue, client: Client) -> None:
        assert client.queues.pause(jobs.queue) == ["delivery"]
        assert client.queues.pause(jobs.queue, "intake") == ["delivery", "intake"]
        assert client.queues.get(jobs.queue).paused == ("delivery", "intake")
        assert client.queues.resume(jobs.queue) == ["intake"]

    def test_settings_are_set_shown_and_taken_back(self, jobs: OwnQueue, client: Client) -> None:
        (setting,) = client.queues.set_settings(jobs.queue, {"max_running": 5})
        assert (setting.key, setting.value, setting.source) == ("max_running", 5, "mongodb")
        assert setting in client.queues.settings(jobs.queue).settings
        (setting,) = client.queues.unset_settings(jobs.queue, ["max_running"])
        assert setting.source == "default"

    def test_the_end_of_all_jobs_can_be_waited_for(self, jobs: OwnQueue, client: Client) -> None:
        jobs.push()
        with pytest.raises(TimeoutError, match="has 1 jobs to do"):
            client.queues.wait_until_empty(jobs.queue, timeout=0.1)
        jobs.take().commit()
        client.queues.wait_until_empty(jobs.queue, timeout=SECONDS)

    def test_a_queue_is_deleted(self, jobs: OwnQueue, client: Client) -> None:
        jobs.push()
        assert client.queues.delete(jobs.queue).result(SECONDS) == 1
        with pytest.raises(NotFoundError):
            client.queues.get(jobs.queue)


class TestJobs:
    def test_jobs_are_listed_and_shown(self, jobs: OwnQueue, client: Client) -> None:
        first, second = jobs.push(b"one"), jobs.push(b"two")
        assert [job.id for job in client.jobs.list(jobs.queue)] == [first, second]
        assert [job.id for job in client.jobs.list(jobs.queue, limit=1, newest=True)] == [second]
        assert client.jobs.get(jobs.queue, first).payload == b"one"
        assert client.jobs.list(jobs.queue, first=1)[0].payload_bytes == 3

    def test_a_job_that_waits_is_changed_promoted_and_cancelled(self, jobs: OwnQueue, client: Client) -> None:
        job = jobs.push(delay=LONG)
        client.jobs.change(jobs.queue, job, priority=200)
        assert client.jobs.get(jobs.queue, job).priority == 200
        client.jobs.promote(jobs.queue, job)
        assert client.queues.get(jobs.queue).ready == 1
        client.jobs.cancel(jobs.queue, job)
        with pytest.raises(NotFoundError):
            client.jobs.get(jobs.queue, job)

    def test_jobs_are_reserved_and_popped_and_have_results(self, jobs: OwnQueue, client: Client) -> None:
        job = jobs.push(b"work", reply="result")
        with client.jobs.reserve(jobs.queue, 1, wait=SECONDS) as claim:
            claim.jobs[0].commit(b"done")
        assert client.jobs.result(jobs.queue, job, wait=SECONDS) == b"done"
        jobs.push(b"popped")
        assert [popped.payload for popped in client.jobs.pop(jobs.queue, wait=SECONDS)] == [b"popped"]


class TestDeadLetters:
    def test_they_are_listed_and_counted_by_their_reasons(self, jobs: OwnQueue, client: Client) -> None:
        dead = bury(jobs, "no disk", "no disk", "no mail")
        assert [letter.id for letter in client.dead_letters.list(jobs.queue)] == dead
        assert client.dead_letters.list(jobs.queue, newest=True)[0].id == dead[-1]
        assert client.dead_letters.count(jobs.queue).count == 3
        assert client.dead_letters.count(jobs.queue, reason="disk").count == 2
        assert client.dead_letters.count(jobs.queue, until=1.0).count == 0
        reasons = client.dead_letters.by_reason(jobs.queue)
        assert [(reason.reason, reason.count) for reason in reasons] == [("no disk", 2), ("no mail", 1)]

    def test_they_are_redriven_and_discarded(self, jobs: OwnQueue, client: Client) -> None:
        dead = bury(jobs, "no disk", "no mail")
        moved = client.dead_letters.redrive(jobs.queue, reason="disk").result(SECONDS)
        assert (moved.moved, moved.left, moved.refused) == (1, 0, ())
        (refused,) = client.dead_letters.redrive(jobs.queue, ["none"]).result(SECONDS).refused
        assert (refused.id, refused.code) == ("none", "NOT_FOUND")
        assert client.dead_letters.discard(jobs.queue, [dead[1]]).result(SECONDS) == 1


class TestStreamsAndSubscriptions:
    def test_a_stream_is_listed_trimmed_and_erased(self, jobs: OwnQueue, client: Client) -> None:
        stream = f"s{token_hex(4)}"
        with Publisher(endpoint=jobs.endpoint) as publisher:
            for _ in range(3):
                publisher.publish(stream, "t", b"message").wait(SECONDS)
        assert stream in {listed.name for listed in client.streams.list()}
        assert client.streams.trim(stream, 2) == 1
        assert (client.streams.get(stream).first, client.streams.get(stream).last) == (2, 3)
        assert client.streams.erase(stream) == 2

    def test_a_subscription_is_moved_released_and_deleted(self, jobs: OwnQueue, client: Client) -> None:
        stream = f"s{token_hex(4)}"
        with Publisher(endpoint=jobs.endpoint) as publisher:
            publisher.publish(stream, "t", b"message").wait(SECONDS)
        with Subscription(stream, "sums", lambda _message: None, endpoint=jobs.endpoint):
            wait_until(
                lambda: [subscription.name for subscription in client.subscriptions.list(stream)] == ["sums"]
            )
            client.subscriptions.release(stream, "sums")
        client.subscriptions.seek(stream, "sums", 0)
        (row,) = client.subscriptions.list(stream)
        assert (row.watermark, row.holder) == (0, None)
        client.subscriptions.delete(stream, "sums")
        assert client.subscriptions.list(stream) == []


def test_a_schedule_is_added_looked_at_paused_run_and_removed(jobs: OwnQueue, client: Client) -> None:
    name = f"s{token_hex(4)}"
    added = client.schedules.add(name, jobs.queue, b"go", every=LONG)
    assert (added.queue, added.every, added.paused) == (jobs.queue, LONG, False)
    assert client.schedules.get(name) in client.schedules.list()
    client.schedules.pause(name)
    assert client.schedules.get(name).paused
    job = client.schedules.run(name)
    assert client.jobs.get(jobs.queue, job).payload == b"go"
    assert not client.schedules.resume(name).paused
    client.schedules.delete(name)
    with pytest.raises(NotFoundError, match="no schedule"):
        client.schedules.get(name)


def test_a_principal_is_added_granted_given_another_key_and_removed(client: Client) -> None:
    name = f"p{token_hex(4)}"
    added = client.principals.add(name, "push=mail.*", token=True, limits={"max_rate": 5})
    assert added.token is not None
    assert (added.permissions, added.limits) == ({"push": ("mail.*",)}, {"max_rate": 5.0})
    with pytest.raises(BadFramesError, match="already"):
        client.principals.add(name, token=True)
    granted = client.principals.grant(name, {"work": ["mail"]}, force=True)
    assert granted.permissions == {"work": ("mail",)}
    both = client.principals.rotate(name, token=True, force=True)
    assert (len(both.keys), both.token is None) == (2, False)
    one = client.principals.rotate(name, end=added.keys[0].id, force=True)
    assert added.keys[0].id not in {key.id for key in one.keys}
    assert name in {principal.name for principal in client.principals.list()}
    with pytest.raises(TypeError, match="one of key, password, token and end"):
        client.principals.rotate(name)
    client.principals.remove(name, force=True)
    with pytest.raises(NotFoundError):
        client.principals.get(name)


def test_brokers_and_workers_are_listed(jobs: OwnQueue, client: Client) -> None:
    assert any(broker.here for broker in client.brokers.list())
    schema = client.brokers.schema()
    assert schema.schema == schema.newest
    assert client.brokers.upgrade().schema == schema.schema
    jobs.push()
    jobs.take()
    (worker,) = client.workers.list(jobs.queue)
    assert (worker.queue, worker.in_flight) == (jobs.queue, 1)


def test_events_are_read(jobs: OwnQueue, client: Client) -> None:
    after = client.events.read(jobs.queue).after
    job = jobs.push()
    page = wait_until(
        lambda: next((page for page in [client.events.read(jobs.queue, after)] if page.events), None)
    )
    assert [(event.event, event.job) for event in page.events] == [("pushed", job)]


def test_events_are_followed(jobs: OwnQueue, client: Client) -> None:
    seen: list[str] = []

    def follow() -> None:
        seen.append(next(client.events.follow(jobs.queue)).event)

    follower = threading.Thread(target=follow)
    follower.start()
    wait_until(lambda: jobs.push() and seen, what="an event")
    follower.join(TIMEOUT)
    assert seen == ["pushed"]


def test_a_history_is_of_a_queue_a_stream_a_device_or_brokers(jobs: OwnQueue, client: Client) -> None:
    assert client.history.queue(jobs.queue, span="hour").subject == "queue"
    assert client.history.stream("nothing").points == ()
    assert client.history.device("streamer.nobody").points == ()
    assert client.history.broker().name == "*"


def test_the_audit_is_listed_and_read_to_its_end(jobs: OwnQueue, client: Client) -> None:
    for _ in range(3):
        client.queues.pause(jobs.queue)
        client.queues.resume(jobs.queue)
    rows = client.audit.list(name=jobs.queue, action="pause", limit=2)
    assert {row.action for row in rows} == {"pause"}
    assert {entry.action for entry in client.audit.iterate(name=jobs.queue)} == {"pause", "resume"}
    with pytest.raises(TypeError, match="not by 'queue'"):
        client.audit.list(queue=jobs.queue)  # type: ignore[call-arg]


def test_a_client_has_stats_counters_and_health(jobs: OwnQueue, client: Client) -> None:
    assert jobs.queue in {queue.name for queue in client.stats().queues}
    assert client.counters().broker["store"] == client.health().store == "ok"
    with pytest.warns(DeprecationWarning, match=r'CountersRow\["broker"\] is now CountersRow.broker'):
        assert client.counters()["broker"]["store"] == "ok"


# -------------------------------------------------------------------- operations

GOES_ON = {"task": "a1b2", "done": 500, "total": 3000}
ROW: dict[str, Any] = {
    "id": "a1b2",
    "kind": "purge",
    "queue": "q",
    "state": "running",
    "done": 500,
    "looked": 0,
    "total": 3000,
}
DONE = {**ROW, "state": "done", "done": 3000, "answer": 3000, "ended_at": 1e9}


def goes_on(broker: ScriptedBroker, *rows: dict[str, Any]) -> Client:
    """A client of a broker whose purge takes long, and looks like this each time."""
    seen = iter(rows)
    broker.on[wire.PURGE] = lambda _message: GOES_ON
    broker.on[wire.TASK] = lambda _message: next(seen)
    return Client(endpoint=broker.endpoint)


def test_an_order_that_takes_long_is_an_operation_whose_progress_is_seen(broker: ScriptedBroker) -> None:
    with goes_on(broker, ROW, DONE) as client:
        operation = client.queues.purge("q")
        assert (operation.id, operation.state, operation.ended) == ("a1b2", "running", False)
        assert repr(operation) == "<Operation a1b2: running, 500 of 3000 jobs>"
        assert [future.done for future in operation] == [500, 3000]
        assert (operation.result(), operation.done, operation.ended) == (3000, 3000, True)


def test_the_outcome_of_an_operation_is_waited_for(broker: ScriptedBroker) -> None:
    seen: list[int] = []
    with goes_on(broker, ROW, ROW, DONE) as client:
        operation = client.queues.purge("q")
        with pytest.raises(TimeoutError, match="a1b2 goes on after 0 s: 500 of 3000 jobs"):
            operation.result(timeout=0)
        assert operation.wait(TIMEOUT, lambda row: seen.append(row.done))
    assert seen == [500, 3000]


def test_an_operation_is_cancelled_and_found_by_its_id(broker: ScriptedBroker) -> None:
    broker.on[wire.TCANCEL] = lambda _message: None
    broker.on[wire.TASKS] = lambda _message: [ROW]
    with goes_on(broker, ROW, {**ROW, "state": "cancelled", "ended_at": 1e9}) as client:
        client.queues.purge("q").cancel()
        assert [operation.id for operation in client.operations.list()] == ["a1b2"]
        assert client.operations.get("a1b2").state == "running"
        assert client.operations.wait("a1b2", TIMEOUT).state == "cancelled"
        client.operations.cancel("a1b2")
    assert [message.fields for message in broker.of(wire.TCANCEL)] == [["a1b2"], ["a1b2"]]


def test_a_small_operation_is_done_at_once(jobs: OwnQueue, client: Client) -> None:
    jobs.push()
    operation = client.queues.purge(jobs.queue, wait=TIMEOUT)
    assert (operation.id, operation.state, operation.done, operation.total) == (None, "done", 1, 1)
    assert list(operation) == []
    operation.cancel()


# -------------------------------------------------------------------- names


def test_a_namespace_has_its_verbs_and_nothing_else(client: Client) -> None:
    for name, namespace in vars(client).items():
        if isinstance(namespace, Namespace):
            public = [name for name in dir(namespace) if not name.startswith("_")]
            verbs = [
                getmember
                for getmember, _ in inspect.getmembers(type(namespace), inspect.isfunction)
                if getmember in public
            ]
            assert public == verbs, name
    assert not {"purge", "peek", "users"} & set(dir(client))


def test_each_verb_says_what_it_does_to_what_and_is_typed() -> None:
    for kind in Namespace.__subclasses__():
        for owner in (kind, *kind.__subclasses__()):
            for name, verb in vars(owner).items():
                if inspect.isfunction(verb) and not name.startswith("_"):
                    assert verb.__doc__, (owner, name)
                    assert "dict[str, Any]" not in str(verb.__annotations__), (owner, name)


OLD_CALLS: dict[str, tuple[Any, ...]] = {
    "queue": ("{queue}",), "queues": (), "settings": ("{queue}",), "set_settings": ("{queue}", {"ttl": 9}),
    "unset_settings": ("{queue}", ["ttl"]), "pause": ("{queue}",), "resume": ("{queue}",),
    "peek": ("{queue}",), "purge": ("{queue}",), "redrive": ("{queue}",), "discard": ("{queue}",),
    "reserve": ("{queue}", 1), "pop": ("{queue}",), "delete": ("{queue}",), "tasks": (), "streams": (),
    "subscriptions": (), "schedules": (), "workers": (), "events": (), "history": ("{queue}",),
    "audit": (), "brokers": (), "upgrade": (), "users": (),
}  # fmt: skip
#: Those that raise at a queue, or with an id, that is not there.
OLD_REFUSED: dict[str, tuple[Any, ...]] = {
    "show": ("{queue}", "none"), "change": ("{queue}", "none"), "promote": ("{queue}", "none"),
    "cancel": ("{queue}", "none"), "result": ("{queue}", "none"), "task": ("none",),
    "cancel_task": ("none",), "follow": ("none",), "stream": ("none!",), "trim": ("none!", 1),
    "erase": ("none!",), "seek": ("none!", "a", 1), "release": ("none", "a"), "forget": ("none!", "a"),
    "add_schedule": ("a", "none!", b"" ), "remove_schedule": ("none",), "pause_schedule": ("none",),
    "resume_schedule": ("none",), "run_schedule": ("none",),
}  # fmt: skip


def old(client: Client, name: str, arguments: tuple[Any, ...], queue: str) -> Any:
    """Call a method of 0.3; it warns of itself."""
    given = [queue if argument == "{queue}" else argument for argument in arguments]
    more = {"every": 5} if name == "add_schedule" else {}
    with pytest.warns(DeprecationWarning, match=rf"Client\.{name}(\(\))? is now Client\."):
        return getattr(client, name)(*given, **more)


@pytest.mark.parametrize("name", OLD_CALLS)
def test_a_method_of_the_last_version_works_and_warns(jobs: OwnQueue, client: Client, name: str) -> None:
    answer = old(client, name, OLD_CALLS[name], jobs.queue)
    for row in answer if isinstance(answer, list) else [answer]:
        assert not hasattr(row, "__struct_fields__"), "a row where 0.3 had a map"


@pytest.mark.parametrize("name", OLD_REFUSED)
def test_a_method_of_the_last_version_refuses_as_it_did(jobs: OwnQueue, client: Client, name: str) -> None:
    with pytest.raises(Exception, match=r"no|none|change is"):
        old(client, name, OLD_REFUSED[name], jobs.queue)


def test_each_method_of_the_last_version_is_tried() -> None:
    noted = {name for name in OLD_NAMES if name.startswith("Client.")}
    assert {f"Client.{call}" for call in (*OLD_CALLS, *OLD_REFUSED)} == {
        call.removesuffix("()") for call in noted
    }
