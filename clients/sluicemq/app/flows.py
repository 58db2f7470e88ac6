"""Flows: several tasks behind or beside each other, pushed as one job.

A chain is forwarded from queue to queue, and a group is a job that fans out into children. With steps behind
it the group joins them: it is delivered once more with their results, and is forwarded. The broker does each
in one transaction: after a crash a job is in one of the two queues, and children are all there or none.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sluicemq.app.step import Plan, Step
from sluicemq.forward import MOST_CHILDREN, FanOut, Forward
from sluicemq.job import ChildResult, Job

#: The kind of a job whose payload has the steps of a group.
GROUP: Final = "sluicemq.group"


class _Group(msgspec.Struct, omit_defaults=True):
    """The payload of a group's job."""

    steps: list[Plan]
    allow_failures: bool = False


def chain(*steps: Step) -> Step:
    """Return steps that run one after the other, as one job that is forwarded: ``chain(a.s(1), b.s())``.

    An argument that is :data:`~sluicemq.PREVIOUS` gets the result of the step before: of a group the list of
    its results. The result is that of the last step. If a step fails for good, the job is a dead letter of
    that step's queue, and redriven it goes on there. An option that a step does not have stays as the step
    before had it.
    """
    if not steps:
        raise ValueError("a chain has at least one step")
    return steps[0].then(*steps[1:])


def group(*steps: Step, allow_failures: bool = False) -> Step:
    """Return steps that run beside each other, as children of one job: ``group(a.s(1), a.s(2))``.

    That job is in the queue of the first step. It is done when all of them are, without a result; ``call``
    waits for that. ``group(...).then(b.s(PREVIOUS))`` goes on with the list of their results, 1 MiB at most.
    If one fails for good, the job is a dead letter too. ``allow_failures``: it goes on, and
    ``{"id": ..., "error": ...}`` is in the list instead of that result.
    """
    if not 1 <= len(steps) <= MOST_CHILDREN:
        raise ValueError(f"a group has 1 to {MOST_CHILDREN} steps, not {len(steps)}")
    for step in steps:
        step.check_moves()
        if step.plan.takes is not None:
            raise TypeError(f"{step.plan.kind} in a group has no step before it: give {step.plan.takes!r}")
    plans = msgspec.json.encode(_Group([step.plan for step in steps], allow_failures))
    return steps[0].beside(Plan(steps[0].plan.queue, GROUP, msgspec.Raw(plans)))


def next_of_group(job: Job, then: list[Plan]) -> FanOut | Forward:
    """Return the children of a group's job, or the step behind it with what they have returned.

    Raises TypeError for a payload that has no steps, and for a result that can't be handed on.
    """
    try:
        found = msgspec.json.decode(job.payload, type=_Group)
        if job.children is None or not then:
            steps = [step.forward() for step in found.steps]
            return FanOut(*steps, join=bool(then), allow_failures=found.allow_failures)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TypeError(f"the payload has no steps: {error}") from error
    return onward(then, msgspec.json.encode([_returned(child, found) for child in job.children]))


def onward(then: list[Plan], result: bytes) -> Forward:
    """Return the move to the next step; ``result``: that of the step before, as JSON."""
    first, *rest = then
    return msgspec.structs.replace(first, then=rest).forward(result)


def _returned(child: ChildResult, group: _Group) -> Any:
    if child.result is None:
        if group.allow_failures:
            return {"id": child.id, "error": child.error}
        raise TypeError(f"child {child.id} has no result: {child.error}")
    try:
        return msgspec.json.decode(child.result or b"null")
    except (msgspec.MsgspecError, ValueError) as error:
        raise TypeError(f"the result of child {child.id} is not JSON: {error}") from error
