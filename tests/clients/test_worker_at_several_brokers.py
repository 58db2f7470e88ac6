"""A worker of several brokers: one prefetch, shared by its connections and never exceeded."""

import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq import Job, Worker
from sluicemq.protocol import wire
from sluicemq.transport.alone import ALONE, AT_MOST
from support.waiting import wait_until

Brokers = Callable[[int], list[ScriptedBroker]]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    started: list[ScriptedBroker] = []

    def start(count: int) -> list[ScriptedBroker]:
        started.extend(ScriptedBroker().start() for _ in range(count))
        return started

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass for what waits until a job can run alone."""
    now = monotonic()

    def let_pass(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(ALONE, "clock", lambda: now)
    return let_pass


class Handler:
    """A handler that holds each job until it is told to go on."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self._go_on = threading.Semaphore(0)

    def __call__(self, job: Job) -> None:
        self.begun.append(job.payload)
        assert self._go_on.acquire(timeout=SECONDS)

    def go_on(self, jobs: int = 1) -> None:
        self._go_on.release(jobs)


def endpoints(brokers: list[ScriptedBroker]) -> list[str]:
    return [broker.endpoint for broker in brokers]


def credit(broker: ScriptedBroker) -> int | None:
    """The credit of the last READY; None before the first."""
    asked = broker.of(wire.READY)
    return asked[-1].fields[1] if asked else None


def credits_are(brokers: list[ScriptedBroker], *wanted: int | None) -> bool:
    return sorted(map(credit, brokers), key=str) == sorted(wanted, key=str)


def wait_credits(brokers: list[ScriptedBroker], *wanted: int | None) -> None:
    wait_until(lambda: credits_are(brokers, *wanted), SECONDS, f"credits {wanted}")


def peer(broker: ScriptedBroker) -> bytes:
    return broker.of(wire.READY)[-1].peer


def test_a_prefetch_is_shared_by_all_brokers_and_a_lost_ones_share_goes_on(brokers: Brokers) -> None:
    three = brokers(3)
    with Worker("q", Handler(), prefetch=5, endpoint=endpoints(three)):
        wait_credits(three, 2, 2, 1)
        three[0].stop()
        wait_credits(three[1:], 2, 3)
        three[1].stop()
        wait_credits(three[2:], 5)


def test_with_fewer_jobs_than_brokers_the_rest_stand_by_and_take_over(brokers: Brokers) -> None:
    three = brokers(3)
    with Worker("q", Handler(), prefetch=1, endpoint=endpoints(three)):
        for left in (3, 2, 1):
            wait_credits(three, *[0] * (left - 1), 1)
            working = next(broker for broker in three if credit(broker) == 1)
            working.stop()
            three.remove(working)


def test_a_broker_that_comes_gets_jobs_only_as_others_have_fewer(brokers: Brokers) -> None:
    # Given: a worker that is full with jobs of the first broker, while the second is away
    first, second = both = brokers(2)
    second.stop()
    handler = Handler()
    with Worker("q", handler, prefetch=4, concurrency=4, endpoint=endpoints(both)):
        wait_credits([first], 4)
        first.deliver(peer(first), "q", [b"1", b"2", b"3", b"4"])
        wait_until(lambda: len(handler.begun) == 4, SECONDS)
        # When: it comes, and the first broker does not answer
        held_back: list[Received] = []

        def hold_back(message: Received) -> object:
            held_back.append(message)
            return SILENCE

        first.on[wire.READY] = hold_back
        second.received.clear()
        second.start()
        # Then: it has nothing while the first may still send
        wait_credits(both, 2, 0)
        wait_until(lambda: held_back, SECONDS)
        assert credit(second) == 0
        # And: when it has answered, one for each job that is settled beyond its share
        handler.go_on()
        first.wait_for(wire.SETTLE)
        assert credit(second) == 0
        first.answer(held_back[-1], None)
        wait_credits([second], 1)
        handler.go_on()
        wait_credits([second], 2)
        handler.go_on(2)
        wait_until(lambda: len(first.settled()) == 4, SECONDS)
        assert credits_are(both, 2, 2)


def test_a_verdict_goes_to_the_broker_that_the_job_came_by(brokers: Brokers) -> None:
    both = brokers(2)
    with Worker("q", lambda job: job.payload, prefetch=2, endpoint=endpoints(both)):
        wait_credits(both, 1, 1)
        for number, broker in enumerate(both):
            broker.deliver(peer(broker), "q", [b"%d" % number])
        for number, broker in enumerate(both):
            broker.wait_for(wire.SETTLE)
            assert list(broker.settled()) == [b"r-%d" % number]


def test_a_job_of_a_lost_broker_is_void_and_those_of_others_stay(brokers: Brokers) -> None:
    first, second = both = brokers(2)
    handler = Handler()
    with Worker("q", handler, prefetch=4, endpoint=endpoints(both)):
        wait_credits(both, 2, 2)
        first.deliver(peer(first), "q", [b"begun"])
        wait_until(lambda: handler.begun == [b"begun"], SECONDS)
        first.deliver(peer(first), "q", [b"void"])
        second.deliver(peer(second), "q", [b"a", b"b"])
        # While its handler is at work no thread is free: nothing is wanted
        first.stop()
        wait_credits([second], 0)
        handler.go_on(10)
        wait_credits([second], 4)
        wait_until(lambda: len(second.settled()) == 2, SECONDS)
        assert sorted(handler.begun) == [b"a", b"b", b"begun"]


def test_a_stopping_broker_has_its_jobs_settled_and_others_have_its_share(brokers: Brokers) -> None:
    first, second = both = brokers(2)
    handler = Handler()
    with Worker("q", handler, prefetch=4, concurrency=4, endpoint=endpoints(both)):
        wait_credits(both, 2, 2)
        first.deliver(peer(first), "q", [b"in hand"])
        wait_until(lambda: handler.begun, SECONDS)
        # When: it says that it stops
        first.hello["stopping"] = True
        first.send(peer(first), wire.encode(wire.BYE, 0))
        wait_credits(both, 0, 3)
        # Then: the job is settled there, and its place goes to the other
        handler.go_on()
        first.wait_for(wire.SETTLE)
        wait_credits([second], 4)


def test_a_worker_of_many_brokers_connects_to_four(brokers: Brokers) -> None:
    six = brokers(6)
    with Worker("q", Handler(), prefetch=8, endpoint=endpoints(six)):
        wait_credits(six, 2, 2, 2, 2, None, None)
        next(broker for broker in six if credit(broker) == 2).stop()
        wait_until(lambda: sum(credit(broker) is not None for broker in six) == 5, SECONDS)


def test_a_worker_that_pops_never_requests_more_than_its_prefetch(brokers: Brokers) -> None:
    first, second = both = brokers(2)
    second.stop()
    handler = Handler()
    with Worker("q", handler, prefetch=4, concurrency=4, pop=True, endpoint=endpoints(both)):
        # Given: one job of four requested ones has come
        wait_credits([first], 4)
        first.deliver(peer(first), "q", [b"1"])
        wait_until(lambda: handler.begun, SECONDS)
        # When: another broker comes
        second.received.clear()
        second.start()
        # Then: the rest is called off, and shared anew
        wait_until(lambda: [message.fields[1] for message in first.of(wire.READY)] == [4, 0, 1], SECONDS)
        wait_until(lambda: sum(message.fields[1] for message in second.of(wire.READY)) == 2, SECONDS)
        handler.go_on()


def test_a_stopped_worker_gives_back_the_jobs_of_all_brokers(brokers: Brokers) -> None:
    both = brokers(2)
    handler = Handler()
    worker = Worker("q", handler, prefetch=4, endpoint=endpoints(both))
    worker.start()
    wait_credits(both, 2, 2)
    for number, broker in enumerate(both):
        broker.deliver(peer(broker), "q", [b"%d-a" % number, b"%d-b" % number])
    wait_until(lambda: handler.begun, SECONDS)
    threading.Timer(0.1, handler.go_on).start()
    assert worker.stop(SECONDS)
    verdicts = [row[0] for broker in both for row in broker.settled().values()]
    assert sorted(verdicts) == ["COMMIT", "RELEASE", "RELEASE", "RELEASE"]
    assert all(broker.of(wire.BYE) for broker in both)


def test_jobs_that_no_handler_can_begin_go_back_and_a_handlers_end_brings_more(brokers: Brokers) -> None:
    first, second = both = brokers(2)
    handler = Handler()
    with Worker("q", handler, prefetch=4, endpoint=endpoints(both)):
        wait_credits(both, 2, 2)
        first.deliver(peer(first), "q", [b"long"])
        wait_until(lambda: handler.begun, SECONDS)
        second.deliver(peer(second), "q", [b"late"], within=0.5)
        second.wait_for(wire.SETTLE)
        assert second.settled()[b"r-late"][0] == "RELEASE"
        wait_credits(both, 0, 0)
        handler.go_on()
        wait_credits(both, 2, 2)


def verdicts(broker: ScriptedBroker) -> list[tuple[bytes, str]]:
    return [(row[0], row[1]) for job in broker.of(wire.SETTLE) for row in job.fields[0]]


def test_a_job_that_is_to_run_alone_runs_when_all_else_has_ended_and_alone(brokers: Brokers) -> None:
    # Given a worker of three brokers with a job that runs, one that waits, and a worker of another queue
    busy, suspect, other = three = brokers(3)
    handler, elsewhere = Handler(), Handler()
    with (
        Worker("q", handler, prefetch=6, concurrency=1, endpoint=endpoints([busy, suspect])),
        Worker("w", elsewhere, prefetch=3, endpoint=other.endpoint),
    ):
        wait_credits(three, 3, 3, 3)
        busy.deliver(peer(busy), "q", [b"runs"])
        wait_until(lambda: handler.begun == [b"runs"], SECONDS)
        busy.deliver(peer(busy), "q", [b"waits"])
        # When a job comes that a worker died with: then it goes back, and so does what has not begun
        suspect.deliver(peer(suspect), "q", [b"alone"], alone=True)
        wait_credits(three, 0, 0, 0)
        wait_until(lambda: verdicts(suspect) == [(b"r-alone", "RELEASE")], SECONDS)
        wait_until(lambda: verdicts(busy) == [(b"r-waits", "RELEASE")], SECONDS)
        # When all else has ended: then it is requested, and runs
        handler.go_on()
        wait_credits(three, 0, 0, 6)
        assert credit(suspect) == 6
        suspect.deliver(peer(suspect), "q", [b"alone"], alone=True)
        wait_until(lambda: handler.begun == [b"runs", b"alone"], SECONDS)
        assert credits_are(three, 0, 0, 6)
        # When it is settled: then all have jobs again
        handler.go_on()
        wait_credits(three, 3, 3, 3)
        assert verdicts(suspect)[-1] == (b"r-alone", "COMMIT")


def test_when_a_job_that_was_to_run_alone_is_taken_all_have_jobs_again(brokers: Brokers) -> None:
    both = brokers(2)
    with Worker("q", Handler(), prefetch=4, endpoint=endpoints(both)):
        wait_credits(both, 2, 2)
        both[0].deliver(peer(both[0]), "q", [b"alone"], alone=True)
        wait_until(lambda: 4 in [message.fields[1] for message in both[0].of(wire.READY)], SECONDS)
        wait_credits(both, 2, 2)


def test_one_that_comes_to_a_worker_with_nothing_else_begins_at_once(brokers: Brokers) -> None:
    (only,) = brokers(1)
    with Worker("q", lambda job: job.payload, prefetch=4, endpoint=only.endpoint):
        wait_credits([only], 4)
        only.deliver(peer(only), "q", [b"alone"], alone=True)
        wait_until(lambda: verdicts(only) == [(b"r-alone", "COMMIT")], SECONDS)
        assert [message.fields[1] for message in only.of(wire.READY)] == [4]


def run_alone(broker: ScriptedBroker, queue: str, payload: bytes, handler: Handler) -> None:
    """Deliver a job that is to run alone, again whenever it was given back and jobs are requested."""
    before = verdicts(broker).count((b"r-" + payload, "RELEASE"))
    delivered = 0

    def begins() -> bool:
        nonlocal delivered
        back = verdicts(broker).count((b"r-" + payload, "RELEASE")) - before
        if credit(broker) and back == delivered:
            broker.deliver(peer(broker), queue, [payload], alone=True)
            delivered += 1
        return payload in handler.begun

    wait_until(begins, SECONDS, "the beginning of the job")


def released(broker: ScriptedBroker) -> list[float]:
    """The delays of the jobs that were given back."""
    return [row[3] for job in broker.of(wire.SETTLE) for row in job.fields[0] if row[1] == "RELEASE"]


def test_a_process_waits_some_seconds_for_a_long_job_to_end_and_then_all_have_jobs_again(
    brokers: Brokers, pass_time: Callable[[float], None]
) -> None:
    # Given a worker with a long job, and one with many threads in the same process
    slow, fast = both = brokers(2)
    long, short = Handler(), Handler()
    with (
        Worker("slow", long, endpoint=slow.endpoint),
        Worker("fast", short, concurrency=8, endpoint=fast.endpoint),
    ):
        wait_credits(both, 1, 8)
        slow.deliver(peer(slow), "slow", [b"long"])
        wait_until(lambda: long.begun, SECONDS)
        # When a job comes that is to run alone, and the long one does not end
        fast.deliver(peer(fast), "fast", [b"alone"], alone=True)
        wait_credits(both, 0, 0)
        pass_time(AT_MOST)
        # Then all have jobs again
        wait_credits(both, 1, 8)
        fast.deliver(peer(fast), "fast", [b"short"])
        wait_until(lambda: short.begun == [b"short"], SECONDS)
        short.go_on()
        wait_until(lambda: (b"r-short", "COMMIT") in verdicts(fast), SECONDS)
        # And the job goes elsewhere for a while, as long as the long one runs
        fast.deliver(peer(fast), "fast", [b"alone"], alone=True)
        wait_until(lambda: released(fast) == [0.0, AT_MOST], SECONDS)
        assert credits_are(both, 1, 8)
        # And runs here when that has ended
        long.go_on()
        wait_until(lambda: (b"r-long", "COMMIT") in verdicts(slow), SECONDS)
        run_alone(fast, "fast", b"alone", short)
        assert credits_are(both, 0, 8)
        short.go_on()
        wait_credits(both, 1, 8)


def test_a_job_that_runs_alone_for_some_seconds_may_wait_for_another_queue_of_its_process(
    brokers: Brokers, pass_time: Callable[[float], None]
) -> None:
    # Given a job that runs alone
    caller, called = both = brokers(2)
    waits, answers = Handler(), Handler()
    with Worker("a", waits, endpoint=caller.endpoint), Worker("b", answers, endpoint=called.endpoint):
        wait_credits(both, 1, 1)
        run_alone(caller, "a", b"waits", waits)
        assert credit(called) == 0
        # When it has run for some seconds
        pass_time(AT_MOST)
        # Then the other worker has jobs
        wait_credits(both, 1, 1)
        called.deliver(peer(called), "b", [b"answer"])
        wait_until(lambda: answers.begun == [b"answer"], SECONDS)
        # And they end as all jobs
        answers.go_on()
        waits.go_on()
        wait_until(lambda: (b"r-waits", "COMMIT") in verdicts(caller), SECONDS)
        assert credits_are(both, 1, 1)
