"""The bus over MongoDB when its primary goes: who listens hears that something may be missed, and goes on."""

from __future__ import annotations

import pytest
from pymongo.errors import PyMongoError

from faults.replica_set import ReplicaSet
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import EventRing, connect
from support.waiting import wait_until

full = pytest.mark.full


@full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("goes", ["killed", "steps down"])
def test_who_listens_is_told_and_hears_the_next_primary(database: str, goes: str) -> None:
    with ReplicaSet(3) as replica_set, connect(replica_set.uri) as client:
        one, other = EventRing(client[database]), EventRing(client[database])
        gone = replica_set.primary()
        with one.listen([]) as feed:
            other.send(["ready mail 1"])
            assert wait_until(feed.next) == ["ready mail 1"]
            if goes == "killed":
                replica_set.kill(gone)
            else:
                with replica_set.direct(gone) as direct:
                    direct.admin.command("replSetStepDown", 60, force=True)
            with pytest.raises(UnavailableError):
                wait_until(lambda: feed.next() and False, what="an end")
        wait_until(lambda: listens(one, other), what="another primary")


def listens(one: EventRing, other: EventRing) -> bool:
    """Whether one hears the other, over whatever primary there is."""
    try:
        with one.listen([]) as feed:
            other.send(["ready mail 2"])
            return list(feed.next()) == ["ready mail 2"]
    except (UnavailableError, PyMongoError):
        return False
