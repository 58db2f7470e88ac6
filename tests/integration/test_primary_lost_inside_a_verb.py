"""No primary at the second statement of a verb: what the first did is not taken for "nothing was sent"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from sluicemq_broker.job import Dedupe
from sluicemq_broker.store import QueueStore, Unclear
from support.jobs import NOW, a_job, everything, some_jobs

ME = "me"


def lose_primary_after(store: QueueStore, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """From the first such write on, no read finds a primary."""
    statement, read, written = getattr(store.jobs, write), store.jobs.find, list[str]()

    def then(*arguments: Any, **options: Any) -> Any:
        written.append(write)
        return statement(*arguments, **options)

    def find(*arguments: Any, **options: Any) -> Any:
        if written:
            raise ServerSelectionTimeoutError("no primary")
        return read(*arguments, **options)

    monkeypatch.setattr(store.jobs, write, then)
    monkeypatch.setattr(store.jobs, "find", find)
    monkeypatch.setattr(store.jobs, "with_options", lambda **_options: store.jobs)


def a_claim(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """One of the jobs it finds is another broker's by then, so it asks which it has."""
    jobs = some_jobs(3)
    store.push(jobs, NOW)
    update = store.jobs.update_many

    def overtaken(*arguments: Any, **options: Any) -> Any:
        store.jobs.update_one({"_id": jobs[0].id}, {"$set": {"state": "reserved", "owner": "other"}})
        return update(*arguments, **options)

    monkeypatch.setattr(store.jobs, "update_many", overtaken)
    lose_primary_after(store, monkeypatch, "update_many")
    return lambda: store.reserve(10, NOW, ME)


def a_commit(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """One of its jobs is gone, so it asks which are left."""
    jobs = some_jobs(3, owner=ME)
    store.push(jobs, NOW)
    store.jobs.delete_one({"_id": jobs[0].id})
    lose_primary_after(store, monkeypatch, "delete_many")
    return lambda: store.commit(jobs)


@pytest.mark.parametrize("verb", [a_claim, a_commit])
def test_the_outcome_of_the_verb_is_unclear(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Callable[[], object]]
) -> None:
    act = verb(store, monkeypatch)
    with pytest.raises(Unclear):
        act()


def test_a_push_whose_dedupe_id_can_not_be_judged_any_more_is_unclear(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a job that is stored, inserted reserved, beside one whose dedupe_id is taken
    store.push([a_job(dedupe=Dedupe("x", 60.0))], NOW)
    born, other = a_job("born", owner=ME), a_job(dedupe=Dedupe("x", 60.0))
    find = store.jobs.find
    monkeypatch.setattr(store.jobs, "with_options", lambda **_options: store.jobs)
    monkeypatch.setattr(store.jobs, "find", no_primary)
    # When, then
    with pytest.raises(Unclear):
        store.push([born, other], NOW)
    monkeypatch.setattr(store.jobs, "find", find)
    assert everything(store)["born"]["owner"] == ME


def no_primary(*_arguments: object, **_options: object) -> None:
    raise ServerSelectionTimeoutError("no primary")
