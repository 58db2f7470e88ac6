"""Flows: several tasks behind or beside each other, pushed as one job.

A chain is forwarded from queue to queue, and a group is a job that fans out into children. The broker does
each in one transaction: after a crash a job is in one of the two queues, and children are all there or none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluicemq.app.step import Plan, Step
from sluicemq.forward import MOST_CHILDREN, FanOut

#: The kind of a job whose payload has the steps of a group.
GROUP: Final = "sluicemq.group"


class _Group(msgspec.Struct):
    """The payload of a group's job."""

    steps: list[Plan]


def chain(*steps: Step) -> Step:
    """Return steps that run one after the other, as one job that is forwarded: ``chain(a.s(1), b.s())``.

    An argument that is :data:`~sluicemq.PREVIOUS` gets the result of the step before. The result is that of
    the last step. If a step fails for good, the job is a dead letter of that step's queue, and redriven it
    goes on there. A group is the last step: nothing comes back from it. An option that a step does not have
    stays as the step before had it.
    """
    if not steps:
        raise ValueError("a chain has at least one step")
    for each in steps[1:]:
        _check_moves(each)
    for each in steps[:-1]:
        if _last(each.plan).kind == GROUP:
            raise ValueError("a group is the last step of a chain: its children have no results")
    plans = [plan for each in steps[1:] for plan in _in_line(each.plan)]
    return steps[0].followed_by(plans, steps[-1])


def group(*steps: Step) -> Step:
    """Return steps that run beside each other, as children of one job: ``group(a.s(1), a.s(2))``.

    That job is in the queue of the first step. It is done when all of them are, without a result; ``call``
    waits for that. If one fails for good, the job is a dead letter too.
    """
    if not 1 <= len(steps) <= MOST_CHILDREN:
        raise ValueError(f"a group has 1 to {MOST_CHILDREN} steps, not {len(steps)}")
    for each in steps:
        _check_moves(each)
        if each.plan.takes is not None:
            raise TypeError(f"{each.plan.kind} in a group has no step before it: give {each.plan.takes!r}")
    plans = msgspec.json.encode(_Group([each.plan for each in steps]))
    return steps[0].beside(Plan(steps[0].plan.queue, GROUP, msgspec.Raw(plans)))


def fan_out(payload: bytes) -> FanOut:
    """Return the children of a group's job; raises TypeError for a payload that has none."""
    try:
        found = msgspec.json.decode(payload, type=_Group)
        return FanOut(*(each.forward() for each in found.steps))
    except (msgspec.MsgspecError, ValueError) as error:
        raise TypeError(f"the payload has no steps: {error}") from error


def _check_moves(step: Step) -> None:
    """Raise TypeError for options that a job can't get when it is forwarded, or is a child."""
    if step.job_id is not None:
        raise TypeError(f"{step.plan.kind} has the id of its flow: leave {step.job_id!r} out")
    step.plan.forward()


def _in_line(plan: Plan) -> list[Plan]:
    """Return the steps of a chain within a chain."""
    return [msgspec.structs.replace(plan, then=[]), *plan.then]


def _last(plan: Plan) -> Plan:
    return plan.then[-1] if plan.then else plan
