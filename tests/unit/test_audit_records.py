"""The audit log of one broker, with a store in memory: what waits, is counted together, is bounded."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from sluicemq.protocol.errors import NotFoundError, UnavailableError
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.parts.streams.subscriptions import SessionSubscriptions
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import ANYBODY, Audit, Caller, Principal
from sluicemq_broker.security import audit as module
from sluicemq_broker.security.acts import address_of, details
from sluicemq_broker.store import MOST_AUDITED, AuditKind, AuditRecord, Subscription
from sluicemq_broker.streams import Wish

NOW = 1_000_000.0


class Stored:
    """Records as they were last written; it may be away, or slow."""

    def __init__(self) -> None:
        self.there: dict[str, AuditRecord] = {}
        self.away = False
        self.slow = gevent.event.Event()
        self.slow.set()
        self.trimmed: list[tuple[float, int]] = []

    def write(self, records: Sequence[AuditRecord], /) -> None:
        self.slow.wait()
        if self.away:
            raise UnavailableError("MongoDB is away")
        self.there |= {record.id: record for record in records}

    def trim(self, before: float, most: int, /) -> int:
        self.trimmed.append((before, most))
        return 0

    def of(self, **wanted: Any) -> list[AuditRecord]:
        return [record for record in self.there.values() if wanted.items() <= _fields(record).items()]


def _fields(record: AuditRecord) -> dict[str, Any]:
    return {
        name: getattr(record, name) for name in ("peer", "action", "name", "outcome", "principal", "code")
    }


class Rig:
    def __init__(self, longest_wait: float = 60.0) -> None:
        self.now = NOW
        self.stored = Stored()
        self.counters = Counters()
        self.audit = Audit(self.counters, longest_wait=longest_wait)
        self.audit.begin(self.stored, "here:1", lambda: self.now, retention=100.0)

    def refuse(self, peer: str, name: str = "mail", action: str = "purge") -> None:
        caller = Caller(ANYBODY.principal, f"tcp://{peer}:5555")
        with pytest.raises(NotFoundError), self.audit.act(caller, "smq", action, name, {}):
            raise NotFoundError("there is none")

    def settle(self) -> None:
        gevent.sleep(0.001)
        self.audit.flush()

    @property
    def waiting(self) -> int:
        return len(self.audit.unwritten)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.stored.slow.set()


def test_an_act_is_stored_when_it_is_done(rig: Rig) -> None:
    with rig.audit.act(ANYBODY, "smq", "purge", "mail", {"state": "ready"}) as act:
        act.done(3)
    (record,) = rig.stored.there.values()
    assert (record.action, record.name, record.about) == ("purge", "mail", {"state": "ready", "count": 3})


def test_while_mongodb_is_away_acts_wait_and_are_written_when_it_is_back(rig: Rig) -> None:
    rig.stored.away = True
    rig.audit.act(ANYBODY, "smq", "purge", "mail", {}).done()
    assert not rig.stored.there
    rig.stored.away = False
    rig.audit.tick()
    assert [entry.action for entry in rig.stored.there.values()] == ["purge"]
    assert not rig.waiting


def test_acts_without_operate_are_kept_apart_and_so_are_refusals(rig: Rig) -> None:
    operator, manager = (
        Caller(Principal(name, Permissions.read(may)))
        for name, may in (("ops", "operate"), ("mail", "manage=mail"))
    )

    for caller in (operator, manager):
        rig.audit.act(caller, "smq", "pause", "mail", {}).done()
    rig.audit.note("start", {})
    rig.audit.act(operator, "smq", "purge", "mail", {}).refused("NOT_FOUND")
    rig.settle()

    kinds = [(entry.action, entry.principal, entry.kind) for entry in rig.stored.there.values()]
    assert kinds == [
        ("pause", "ops", AuditKind.OPERATORS),
        ("pause", "mail", AuditKind.OTHERS),
        ("start", "", AuditKind.OPERATORS),
        ("purge", "ops", AuditKind.COUNTED),
    ]


@pytest.mark.parametrize(
    ("tried", "fence", "recorded"),
    [([3], 4, 1), ([3, 4], 5, 1), ([3], 5, 0), ([], 4, 0)],
    ids=["moved", "moved by a second try", "another came before, and had moved it", "nothing to move"],
)
def test_a_hold_that_moves_a_watermark_is_recorded_once_and_when_it_has_moved(
    rig: Rig, tried: list[int], fence: int, recorded: int
) -> None:
    # Given subscriptions of which the fence changes while a hold moves the watermark
    def hold(wish: Wish) -> Subscription:
        for mark in tried:
            wish.may_move(Subscription("news", "sums", 7, mark))
        assert not rig.stored.there
        assert not rig.waiting
        return Subscription("news", "sums", 0, fence)

    subscriptions: Any = SimpleNamespace(hold=hold)
    session = SessionSubscriptions(subscriptions, lambda: "a session", ANYBODY, rig.audit)
    held = session.hold("news", "sums", "update", {"after": 0})
    rig.settle()
    assert held == {"fence": fence, "watermark": 0}
    assert [entry.action for entry in rig.stored.there.values()] == ["hold"] * recorded


def test_an_act_does_not_wait_for_ever() -> None:
    rig = Rig(longest_wait=0.01)
    rig.stored.slow.clear()
    rig.audit.act(ANYBODY, "smq", "purge", "mail", {}).done()
    assert rig.waiting == 1
    rig.stored.slow.set()
    rig.settle()
    assert len(rig.stored.there) == 1


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(rig: Rig) -> None:
    rig.stored.away = True
    for number in range(module.MOST_UNWRITTEN + 3):
        rig.audit.note(str(number), {})
    assert [int(entry.action) for entry in rig.audit.unwritten] == list(range(3, module.MOST_UNWRITTEN + 3))
    assert rig.counters.values[Count.AUDIT_LOST] == 3


def test_refusals_that_are_alike_are_one_record_within_a_minute(rig: Rig) -> None:
    for count, seconds in ((600, 1.0), (400, module.REFUSALS_IN_ONE), (1, 0.0)):
        for _ in range(count):
            rig.refuse("10.0.0.1")
        rig.settle()
        rig.now += seconds
    assert sorted(job.count for job in rig.stored.of(peer="10.0.0.1", code="NOT_FOUND")) == [1, 1000]


def test_addresses_of_one_ipv6_network_are_one(rig: Rig) -> None:
    for number in range(1000):
        rig.refuse(f"[2001:db8:1:2::{number:x}]", str(number))
    rig.refuse("[2001:db8:1:3::1]")
    rig.settle()
    assert [job.count for job in rig.stored.of(peer="2001:db8:1:2::/64")] == [1000 - module.MOST_OF_ONE]
    assert len(rig.stored.of(peer="2001:db8:1:3::1")) == 1
    assert len(rig.stored.there) == module.MOST_OF_ONE + 2


def test_names_that_one_address_makes_up_end_in_one_record_and_leave_others_theirs(rig: Rig) -> None:
    for number in range(10_000):
        rig.refuse("10.0.0.1", f"made-up-{number}")
    rig.refuse("10.0.0.2")
    rig.settle()
    assert len(rig.stored.of(peer="10.0.0.1")) == module.MOST_OF_ONE + 1
    assert sum(job.count for job in rig.stored.of(peer="10.0.0.1")) == 10_000
    assert [job.count for job in rig.stored.of(peer="10.0.0.2", name="mail")] == [1]


def test_addresses_that_somebody_makes_up_end_in_one_record(rig: Rig) -> None:
    for number in range(3 * module.MOST_COUNTED):
        rig.refuse(f"10.1.{number // 256}.{number % 256}")
    rig.settle()
    assert len(rig.stored.there) == module.MOST_COUNTED + 1
    assert sum(job.count for job in rig.stored.there.values()) == 3 * module.MOST_COUNTED


def test_counting_goes_on_in_one_record_while_mongodb_is_away(rig: Rig) -> None:
    rig.stored.away = True
    for _ in range(10):
        rig.refuse("10.0.0.1")
        rig.now += module.REFUSALS_IN_ONE
    assert rig.waiting == 1
    rig.stored.away = False
    rig.settle()
    assert [(job.count, job.until - job.at) for job in rig.stored.there.values()] == [
        (10, 9 * module.REFUSALS_IN_ONE)
    ]


def test_many_records_are_followed_by_a_look_for_old_ones(rig: Rig) -> None:
    for written in (module.TRIMMED_AFTER, 1, 1):
        for number in range(written):
            rig.audit.note(str(number), {})
        rig.audit.tick()
    assert rig.stored.trimmed == [(NOW - 100.0, MOST_AUDITED)]


def test_details_have_known_fields_and_the_names_of_others() -> None:
    secret = {"password": "s3cret", "key": "s3cret", "note": "s3cret", "permissions": {"push": ["a"]}}
    assert details({"about": secret, "ids": ["a", "b"], "state": "x" * 1000, "to": None}) == {
        "permissions": '{"push": ["a"]}',
        "ids": 2,
        "state": "x" * 128,
        "fields": ["key", "note", "password"],
    }


def test_details_are_bounded() -> None:
    about = details({"about": {f"field-{number}" + "x" * 1000: 1 for number in range(5000)}})
    assert len(str(about)) < 10_000


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("tcp://127.0.0.1:4711", "127.0.0.1"),
        ("tcp://[::1]:4711", "::1"),
        ("ipc:///run/x", "ipc:///run/x"),
        ("10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_an_address_has_no_port(peer: str, address: str) -> None:
    assert address_of(peer) == address
