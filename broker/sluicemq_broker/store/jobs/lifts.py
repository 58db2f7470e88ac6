"""Lifts: jobs are taken out of their packs, and stored alone.

Whatever is about one job alone (a rollback, a forward, progress, an order by its id) lifts it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from sluicemq_broker.job import Job, State
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.halving import in_halves
from sluicemq_broker.store.jobs.find_packs import find_packed
from sluicemq_broker.store.jobs.malformed import aside
from sluicemq_broker.store.jobs.pack_contents import alone, entries, is_job, left_in
from sluicemq_broker.store.jobs.pack_marks import bits_of, by_pack, held_under, marking, remove_empty
from sluicemq_broker.store.jobs.transactions import Aborted, transact
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import BY_ID, Document, Jobs


class Lift(NamedTuple):
    """Jobs to be stored alone: the pack as it must be found, and their bits; ``ours``: jobs that we hold."""

    which: Document
    bits: int
    ours: Sequence[Job] = ()


def lift(jobs: Jobs, lifted: Sequence[Job]) -> None:
    """Store jobs of ours alone, under the reservation of their packs. Raises as :func:`transact`.

    Jobs that are not in their packs any more, or not ours, are left to the statement that comes next.
    """
    packs = by_pack(lifted)
    lifts = [
        Lift(held_under(pack, these[0].reservation), bits_of(these), these) for pack, these in packs.items()
    ]
    lift_out(jobs, lifts, 0.0)  # each of ours is a job
    with translated():
        remove_empty(jobs, [pack.id for pack in packs if not pack.left])


def lift_by_id(jobs: Jobs, job_id: str, state: State, now: float) -> None:
    """Store a job of this id alone, if it is in this state and in a pack. Raises as :func:`transact`.

    The broker that holds its pack finds its bit set, and statements about the job find it alone.
    """
    with translated():
        found = find_packed(jobs, [job_id]).get(job_id)
    if found is not None and found.stored["state"] == state:
        names = ("_id", "state", "owner", "hold")
        as_found: Document = {key: found.stored[key] for key in names if key in found.stored}
        lift_out(jobs, [Lift(as_found, found.bit)], now)


def lift_out(jobs: Jobs, lifts: Sequence[Lift], now: float) -> None:
    """Take jobs out of their packs, and insert each alone: many packs in one transaction.

    Commits of other jobs of a pack conflict with it, so after some conflicts it has half as many packs. Lost
    reply: a repetition finds the bits set, and does nothing. A job whose id another one has by now is not
    inserted: two can't lie under one id. Raises as :func:`transact`.
    """
    parts = in_halves(
        lifts, partial(_lift_some, jobs, now=now), refused=(Aborted,), most=lambda: _LIFTS_AT_ONCE
    )
    for part, answer in parts:
        if isinstance(answer, Exception):
            raise answer
        for job in chain.from_iterable(lifted.ours for lifted in part):
            job.leave_pack()


#: Packs of one such transaction: up to 32 MiB of them are read.
_LIFTS_AT_ONCE: Final = 32


def _lift_some(jobs: Jobs, lifts: Sequence[Lift], now: float) -> None:
    taken: set[str] = set()
    tries = 0

    def read() -> Sequence[Lift]:
        nonlocal tries
        tries += 1
        if tries > 1:
            ids: list[str] = []
            for stored in jobs.find({"_id": {"$in": [lift.which["_id"] for lift in lifts]}}, hint=BY_ID):
                ids += [entry[0] for entry in entries(stored) if is_job(entry)]
            found = jobs.find({"_id": {"$in": ids}}, {"_id": 1}, hint=BY_ID)
            taken.update(document["_id"] for document in found)
        return lifts

    def apply(some: Sequence[Lift], session: ClientSession) -> None:
        documents: list[Document] = []
        marks: list[UpdateOne] = []
        ids = [wanted.which["_id"] for wanted in some]
        there = {
            stored["_id"]: stored for stored in jobs.find({"_id": {"$in": ids}}, session=session, hint=BY_ID)
        }
        for wanted in some:
            stored = there.get(wanted.which["_id"], {})
            if not stored or any(stored.get(name) != value for name, value in wanted.which.items()):
                continue
            bits = wanted.bits & left_in(stored)  # an order may have lifted one of them
            marks.append(UpdateOne({"_id": stored["_id"]}, marking(bits), hint=BY_ID))
            try:
                documents += alone(stored, bits, now)
            except Unreadable as error:
                marks.append(UpdateOne({"_id": stored["_id"]}, aside(str(error), now), hint=BY_ID))
        if marks:
            # failpoint packs.lift
            jobs.bulk_write(marks, session=session)
        if documents := [document for document in documents if document["_id"] not in taken]:
            # failpoint packs.insert_lifted
            jobs.insert_many(documents, ordered=False, session=session)
        # failpoint packs.remove_lifted
        jobs.delete_many({"_id": {"$in": ids}, "left": 0}, session=session, hint=BY_ID)

    # failpoint lifts
    transact(jobs.database.client, read, apply, "lifted jobs")
