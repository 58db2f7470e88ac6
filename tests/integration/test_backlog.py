"""What the jobs of a queue are that wait; and a job that is pushed over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from sluicemq_broker.http import BASE
from sluicemq_broker.store import QueueStore, backlog
from sluicemq_broker.store.jobs.documents import collection
from support.broker_under_test import BrokerUnderTest
from support.http_reader import Web
from support.jobs import NOW, some_jobs
from support.own_queue import TOKEN, OwnQueue


@pytest.fixture
def web(shared_broker: BrokerUnderTest) -> Web:
    return Web(shared_broker.process.http)


def test_jobs_that_wait_are_told_by_kind_tenant_and_group(jobs: OwnQueue, web: Web) -> None:
    for number in range(3):
        jobs.push(kind="mail", tenant="north", id=f"a{number}")
        jobs.push(group="g", id=f"b{number}")
    jobs.push(kind="later", delay=1000.0)
    found = web.get(f"{BASE}/queues/{jobs.queue}/backlog").json
    numbers = {
        name: [(row["name"], row["jobs"]) for row in found[name]] for name in ("kinds", "tenants", "groups")
    }
    assert numbers["kinds"] == [("mail", 3), ("", 1)]
    assert ("north", 3) in numbers["tenants"]
    assert numbers["groups"] == [("g", 2)]
    assert (found["looked"], found["more"]) == (4, False)
    assert all(row["oldest"] for row in found["kinds"])


def test_no_more_than_the_first_jobs_are_looked_at(documents: Database[dict[str, Any]]) -> None:
    store = QueueStore(documents, collection("mail"))
    store.prepare()
    store.push(some_jobs(5), NOW)
    assert backlog(documents, "mail", NOW + 1, most=2).looked == 2


@pytest.mark.parametrize(
    ("options", "status"), [({"priority": 7}, 200), ({"priority": "high"}, 400), ({"colour": 1}, 400)]
)
def test_a_job_is_pushed_with_its_options_or_refused(
    jobs: OwnQueue, web: Web, options: dict[str, Any], status: int
) -> None:
    answer = web.post(
        f"{BASE}/queues/{jobs.queue}/push", {"payload": '{"to": "ada"}', "options": options}, TOKEN
    )
    assert answer.status == status
    found = jobs.client.jobs.list(jobs.queue) if status == 200 else []
    assert [(job.payload, job.priority) for job in found] == [(b'{"to": "ada"}', 7)] * len(found)
