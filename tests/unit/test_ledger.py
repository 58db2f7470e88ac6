"""First accepted, first out: in every order of pushes, inserts, claims and releases, without a clock."""

from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.queue.ledger import IN_ORDER, NOTHING, Arrival, Bound, Claiming, Ledger
from support.jobs import NOW, a_job

PRIORITIES = st.integers(0, 2)


def numbered(seq: int, priority: int = 0, group: str | None = None) -> Job:
    job = a_job(f"job-{seq}", priority=priority, group=group)
    job.seq = seq
    return job


class Insert:
    """A push on its way: its insert is applied, and then answered."""

    def __init__(self, arrival: Arrival, jobs: list[Job]) -> None:
        self.arrival = arrival
        self.jobs = jobs
        self.applied = False


class Claim:
    """A claim on its way: it reads and reserves, and then is answered."""

    def __init__(self, claiming: Claiming, bound: Bound, limit: int) -> None:
        self.claiming = claiming
        self.bound = bound
        self.limit = limit
        self.taken: list[Job] | None = None
        self.more = False
        self.late: set[str] = set()  # released, or promoted, since it began


class Order(RuleBasedStateMachine):
    """A MongoDB whose statements may be applied and answered late, and a worker that takes all.

    A job is *chosen* when it is inserted reserved or claimed, and goes *out* when it is staged. Time stands
    still, so nothing is waited for in vain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.seq = int(NOW * 1e6)
        self.inserts: list[Insert] = []
        self.ready: list[Job] = []
        self.in_line: list[Job] = []  # of groups; any of them may be the next of its own
        self.claim: Claim | None = None
        self.returning: list[Job] = []
        self.out: list[Job] = []
        self.chosen: list[Job] = []  # in this order, and not yet out

    # ----------------------------------------------------------------- pushes

    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=3), room=st.integers(0, 3))
    def push(self, priorities: list[int], room: int) -> None:
        self._push([None] * len(priorities), priorities, room)

    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=3), data=st.data())
    def push_some_of_groups(self, priorities: list[int], data: st.DataObject) -> None:
        groups = st.sampled_from(["a group", "a group", None])
        self._push([data.draw(groups) for _ in priorities], priorities, room=3)

    def _push(self, groups: list[str | None], priorities: list[int], room: int) -> None:
        jobs = []
        for priority, group in zip(priorities, groups, strict=True):
            self.seq += 1
            jobs.append(numbered(self.seq, priority, group))
        first = self.ledger.first_to_come(0.0)
        free = [job for job in jobs if job.group is None]
        born = [] if first is None else [job for job in free if job.priority > first][:room]
        for job in born:
            job.reserve(Reservation("me", 1))
            self._choose(job, among=jobs)
        arrival = self.ledger.expect(jobs, born, self.seq, NOW, 0.0)
        self.inserts.append(Insert(arrival, jobs))

    @precondition(lambda self: any(not insert.applied for insert in self.inserts))
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        self._apply(data.draw(st.sampled_from([insert for insert in self.inserts if not insert.applied])))

    @precondition(lambda self: any(insert.applied for insert in self.inserts))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self._answer(data.draw(st.sampled_from([insert for insert in self.inserts if insert.applied])))

    @rule()
    def apply_and_answer_all(self) -> None:
        """So that what nobody would look for comes to light."""
        for insert in list(self.inserts):
            if not insert.applied:
                self._apply(insert)
            self._answer(insert)

    def _apply(self, insert: Insert) -> None:
        insert.applied = True
        self.ready += [job for job in insert.jobs if not job.owner and job.group is None]
        self.in_line += [job for job in insert.jobs if job.group is not None]

    def _answer(self, insert: Insert) -> None:
        self.inserts.remove(insert)
        self.ledger.arrived(insert.arrival, insert.arrival.jobs)
        for passed in self.ledger.passed(0.0):
            self._go_out(passed.jobs)
        waiting = [job.priority for job in insert.jobs if not job.owner and job.group is None]
        if waiting:
            self.ledger.some_ready(max(waiting), 0)

    @precondition(lambda self: self.in_line)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        """The next of a group is ready, whether its own push has been answered or not."""
        job = data.draw(st.sampled_from(self.in_line))
        self.in_line.remove(job)
        self.ready.append(job)
        if self.claim:
            self.claim.late.add(job.id)
        self.ledger.promoted(job.priority, 1, job.seq, 0.0)

    # ----------------------------------------------------------------- claims

    @precondition(
        lambda self: self.claim is None and self.ledger.may_lie_ready and not self.ledger.older_returning(0.0)
    )
    @rule(limit=st.integers(1, 4))
    def begin_claim(self, limit: int) -> None:
        claiming = self.ledger.begin(0.0, catches_up=True)
        self.claim = Claim(claiming, self.ledger.catch_up(NOW, 0.0), limit)

    @precondition(lambda self: self.claim is not None and self.claim.taken is None)
    @rule()
    def read(self) -> None:
        assert self.claim
        free = [job for job in self.ready if job.seq < self.claim.bound.before]
        taken = sorted(free, key=lambda job: (-job.priority, job.seq))[: self.claim.limit]
        self.claim.taken = taken
        self.claim.more = len(taken) < len(free)
        for job in taken:
            self.ready.remove(job)
            self._choose(job, among=taken, but=self.claim.late)

    @precondition(lambda self: self.claim is not None and self.claim.taken is not None)
    @rule()
    def answer_claim(self) -> None:
        claim, self.claim = self.claim, None
        assert claim
        assert claim.taken is not None
        self.ledger.claimed(claim.bound, claim.taken, more=claim.more)
        self._go_out(claim.taken)
        self.ledger.caught_up(claim.bound)
        self.ledger.end(claim.claiming)

    # --------------------------------------------------------------- releases

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.out))
        self.out.remove(job)
        self.returning.append(job)
        if self.claim:
            self.claim.late.add(job.id)
        self.ledger.returning(1, 0.0)

    @precondition(lambda self: self.returning)
    @rule(data=st.data())
    def is_ready_again(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.returning))
        self.returning.remove(job)
        job.reset()
        self.ready.append(job)
        self.ledger.returned(1)
        self.ledger.some_ready(job.priority, 1)

    # ------------------------------------------------------------- what holds

    @invariant()
    def what_lies_ready_is_known_or_will_be(self) -> None:
        """Nothing waits in MongoDB that no claim would look for."""
        known = self.ledger.may_lie_ready or self.claim or self.inserts
        assert known or not self.ready

    @invariant()
    def what_is_expected_is_what_is_on_its_way(self) -> None:
        assert self.ledger.expected == sum(len(insert.arrival.jobs) for insert in self.inserts)

    def _choose(self, job: Job, among: list[Job], but: Collection[str] = ()) -> None:
        """No other that comes before it may be left behind, ``but`` what nobody knew of in time.

        One of a group comes before others from when it is ready.
        """
        pushed = [one for insert in self.inserts for one in insert.jobs]
        on_their_way = [one for one in pushed if not one.owner and one.group is None]
        for other in (*on_their_way, *self.ready, *self.returning):
            before = other.priority == job.priority and other.seq < job.seq
            assert other in among or other.id in but or not before, f"{job.id} overtakes {other.id}"
        self.chosen.append(job)

    def _go_out(self, jobs: list[Job]) -> None:
        """Nor one that was chosen before it, and is not out yet."""
        for job in jobs:
            for other in self.chosen[: self.chosen.index(job)]:
                before = other.priority == job.priority and other.seq < job.seq
                assert other in jobs or not before, f"{job.id} goes out before {other.id}"
        for job in jobs:
            self.chosen.remove(job)
        self.out += jobs


TestOrder = Order.TestCase


def pushed(ledger: Ledger, seq: int, now: float, *, born: bool) -> Arrival:
    job = numbered(seq)
    if born:
        job.reserve(Reservation("me", 1))
    return ledger.expect([job], [job] if born else [], seq, NOW, now)


def test_an_insert_without_an_answer_is_waited_for_a_moment_only() -> None:
    ledger = Ledger()
    pushed(ledger, 1, 0.0, born=False)
    later = pushed(ledger, 2, 0.0, born=True)
    ledger.arrived(later, later.jobs)
    assert ledger.passed(IN_ORDER - 0.01) == []
    assert ledger.passed(IN_ORDER) == [later]


def test_a_claim_without_an_answer_is_waited_for_a_moment_only() -> None:
    ledger = Ledger()
    ledger.begin(0.0, catches_up=True)
    ledger.catch_up(NOW, 0.0)
    asked: list[Any] = [ledger.first_to_come(IN_ORDER - 0.01), ledger.first_to_come(IN_ORDER)]
    assert asked == [None, NOTHING]
    assert (ledger.claims(IN_ORDER - 0.01), ledger.claims(IN_ORDER)) == (True, False)


def test_a_look_keeps_nobody_from_being_inserted_reserved() -> None:
    ledger = Ledger()
    bound = ledger.catch_up(NOW, 0.0)
    ledger.claimed(bound, [], more=False)
    ledger.begin(0.0, catches_up=False)
    assert ledger.first_to_come(0.0) == NOTHING


def test_a_claim_takes_nothing_that_is_accepted_after_it_began() -> None:
    ledger = Ledger()
    assert ledger.search(NOW).before == int(NOW * 1e6)
    arrival = pushed(ledger, int(NOW * 1e6) + 5, 0.0, born=False)
    assert ledger.search(NOW).before == arrival.seq + 1
    bound = ledger.catch_up(NOW, 0.0)
    assert (bound.before, bound.passes_over) == (arrival.seq, True)
    ledger.claimed(bound, [], more=False)
    ledger.caught_up(bound)
    assert not ledger.may_lie_ready  # until that is answered


def test_what_is_promoted_before_its_push_is_answered_is_claimed_once_it_is() -> None:
    # Given an insert of jobs in a group that is applied, and has no answer
    ledger = known_to_be_empty()
    arrival = ledger.expect([numbered(7, group="g")], [], 7, NOW, 0.0)
    # When the first of them is promoted, as the one before it has ended, and a claim passes it over
    ledger.promoted(0, 1, 7, 0.0)
    bound = ledger.catch_up(NOW, 0.0)
    assert bound.before == 7
    ledger.claimed(bound, [], more=False)
    ledger.caught_up(bound)
    assert not ledger.may_lie_ready
    # Then the answer, and that of no other insert, lets it be looked for again
    later = ledger.expect([numbered(8)], [], 8, NOW, 0.0)
    ledger.claimed(ledger.catch_up(NOW, 0.0), [], more=False)
    ledger.arrived(later, [])
    ledger.passed(0.0)
    assert not ledger.may_lie_ready
    ledger.arrived(arrival, [])
    ledger.passed(0.0)
    assert ledger.may_lie_ready


def known_to_be_empty() -> Ledger:
    ledger = Ledger()
    ledger.claimed(ledger.catch_up(0.0, 0.0), [], more=False)
    return ledger


def test_what_a_claim_passes_over_is_claimed_though_the_insert_before_it_was_through_first() -> None:
    # Given an insert of a job inserted reserved, one of a job that is ready, and a claim beside the first
    ledger = known_to_be_empty()
    first = pushed(ledger, 1, 0.0, born=True)
    second = pushed(ledger, 2, 0.0, born=False)
    ledger.arrived(second, [])
    assert ledger.passed(0.0) == []
    claiming, bound = ledger.begin(0.0, catches_up=True), ledger.catch_up(0.0, 0.0)
    assert (bound.before, bound.passes_over) == (1, True)
    # When that insert is answered before the claim is
    ledger.arrived(first, first.jobs)
    assert ledger.passed(0.0) == [first, second]
    ledger.claimed(bound, [], more=False)
    ledger.caught_up(bound)
    ledger.end(claiming)
    # Then the second is looked for again
    assert ledger.may_lie_ready


def test_a_new_job_waits_for_one_of_its_priority_that_a_claim_had_to_pass_over() -> None:
    # Given an insert without an answer, and a claim that had to leave what came after it
    ledger = known_to_be_empty()
    pushed(ledger, 1, 0.0, born=True)
    pushed(ledger, 2, 0.0, born=False)
    bound = ledger.catch_up(0.0, 0.0)
    ledger.claimed(bound, [], more=False)
    ledger.caught_up(bound)
    # Then no new one of that priority is inserted reserved
    assert ledger.first_to_come(IN_ORDER) == bound.priority > NOTHING
    assert (ledger.some_come_first, known_to_be_empty().some_come_first) == (True, False)


def test_a_claim_beside_jobs_that_are_inserted_reserved_keeps_no_new_one_from_being_so() -> None:
    ledger = known_to_be_empty()
    pushed(ledger, 1, 0.0, born=True)
    ledger.some_ready(count=1)
    bound = ledger.catch_up(0.0, 0.0)
    ledger.claimed(bound, [], more=False)
    ledger.caught_up(bound)
    assert not bound.passes_over
    assert ledger.first_to_come(0.0) == NOTHING
