"""One worker for several queues: one connection, one pool of threads, shares by weight or a strict order."""

import threading
from collections import Counter, deque
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import BadQueueError, Job, Worker
from sluicemq.protocol import wire
from sluicemq.worker_queues import StrictInbox, WeightedInbox, prefetch_of
from support.waiting import wait_until


class Gate:
    """A handler whose first job waits until all others have come; it keeps the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = threading.Event()

    def __call__(self, job: Job) -> None:
        if not self.begun:
            assert self.open.wait(SECONDS)
        self.begun.append(job.queue)


def worked(broker: ScriptedBroker, worker: Worker, gate: Gate, queues: list[str], count: int) -> list[str]:
    """The queues of all jobs behind the first, in the order in which they began."""
    with worker:
        ready = broker.wait_for(wire.READY, len(queues))
        assert {message.fields[0] for message in ready} == set(queues)
        assert len({message.peer for message in ready}) == 1
        for queue in queues:
            broker.deliver(ready[0].peer, queue, [b"%s-%d" % (queue.encode(), at) for at in range(count)])
        wait_until(lambda: len(worker._inbox) == count * len(queues) - 1)
        gate.open.set()
        broker.wait_until(lambda: len(broker.settled()) == count * len(queues))
    assert len(broker.of(wire.HELLO)) == 1
    return gate.begun[1:]


def test_queues_have_their_shares_while_each_has_jobs(broker: ScriptedBroker) -> None:
    gate = Gate()
    worker = Worker({"mail": 3, "bulk": 1}, gate, endpoint=broker.endpoint)
    begun = worked(broker, worker, gate, ["mail", "bulk"], 60)
    for at in (8, 20, 60):
        shares = Counter(begun[:at])
        assert abs(shares["mail"] - 3 * shares["bulk"]) <= 3, (at, shares)
    assert Counter(begun) == {"mail": 59, "bulk": 60}


def test_no_job_of_a_later_queue_begins_before_one_of_an_earlier(broker: ScriptedBroker) -> None:
    gate = Gate()
    worker = Worker(["urgent", "mail", "bulk"], gate, order="strict", endpoint=broker.endpoint)
    begun = worked(broker, worker, gate, ["urgent", "mail", "bulk"], 20)
    assert begun == ["urgent"] * 19 + ["mail"] * 20 + ["bulk"] * 20


def test_it_asks_for_so_many_jobs_of_each_queue_that_the_next_is_here(broker: ScriptedBroker) -> None:
    with Worker({"mail": 3, "bulk": 1}, lambda _job: None, prefetch=10, endpoint=broker.endpoint):
        ready = broker.wait_for(wire.READY, 2)
    assert [message.fields[:2] for message in ready[:2]] == [["mail", 15], ["bulk", 5]]
    assert prefetch_of({"mail": 9, "bulk": 1}, 2, 2) == {"mail": 4, "bulk": 4}
    assert prefetch_of({"mail": 7}, 2, 2) == {"mail": 2}


def test_jobs_that_have_not_begun_go_back_when_it_stops(broker: ScriptedBroker) -> None:
    gate = Gate()
    worker = Worker(["urgent", "mail"], gate, stop_timeout=SECONDS, endpoint=broker.endpoint)
    worker.start()
    ready = broker.wait_for(wire.READY, 2)
    broker.deliver(ready[0].peer, "urgent", [b"first", b"second"])
    broker.deliver(ready[0].peer, "mail", [b"third"])
    wait_until(lambda: len(worker._inbox) == 2)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    broker.wait_until(lambda: len(broker.settled()) == 2)
    gate.open.set()
    stopping.join(SECONDS)
    verbs = {receipt: ended[0] for receipt, ended in broker.settled().items()}
    assert verbs == {b"r-first": wire.COMMIT, b"r-second": wire.RELEASE, b"r-third": wire.RELEASE}


def test_a_deliver_of_a_queue_that_was_not_asked_for_cuts_the_connection(broker: ScriptedBroker) -> None:
    with Worker(["urgent", "mail"], lambda _job: None, endpoint=broker.endpoint):
        ready = broker.wait_for(wire.READY, 2)
        broker.deliver(ready[0].peer, "other", [b"x"])
        broker.wait_until(lambda: len(broker.of(wire.HELLO)) == 2)


@pytest.mark.parametrize(
    ("queue", "order", "error", "what"),
    [
        ({"mail": 0}, "weights", ValueError, "weight of queue mail is 0: give 1 or more"),
        ({"mail": 1.5}, "weights", TypeError, "weight of queue mail is an int, not float"),
        ([], "weights", ValueError, "queue is an empty list"),
        (["a b"], "weights", BadQueueError, "'a b' is no queue name"),
        ([7], "weights", TypeError, "queue is a str, not int"),
        (7, "weights", TypeError, "queue is a name, a list of names, or weights by name, not int"),
        (b"mail", "weights", TypeError, "not bytes"),
        (["mail"], "fair", ValueError, "order is 'fair': give 'weights' or 'strict'"),
    ],
)
def test_what_is_wrong_with_queues_is_said(queue: Any, order: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        Worker(queue, lambda _job: None, order=order)


def inboxes(*counts: int) -> list[deque[Job]]:
    return [deque(Job(queue=str(at)) for _ in range(count)) for at, count in enumerate(counts)]


def taken(inbox: WeightedInbox | StrictInbox, count: int) -> str:
    return "".join(inbox.popleft().queue for _ in range(count))


def test_a_queue_that_was_empty_saves_no_turns_up() -> None:
    jobs = inboxes(100, 0)
    inbox = WeightedInbox(jobs, [1, 1])
    assert taken(inbox, 50) == "0" * 50
    jobs[1].extend(Job(queue="1") for _ in range(50))
    assert taken(inbox, 10).count("1") == 5


def test_an_idle_queue_leaves_its_share_to_the_others() -> None:
    inbox = WeightedInbox(inboxes(5, 0, 5), [1, 8, 1])
    assert Counter(taken(inbox, 10)) == {"0": 5, "2": 5}
    with pytest.raises(IndexError):
        inbox.popleft()


def test_a_strict_inbox_looks_at_the_first_queue_each_time() -> None:
    jobs = inboxes(1, 2)
    inbox = StrictInbox(jobs, [1, 1])
    assert taken(inbox, 2) == "01"
    jobs[0].append(Job(queue="0"))
    assert taken(inbox, 2) == "01"
    assert len(inbox) == 0
