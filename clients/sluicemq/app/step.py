"""Steps: calls of tasks that are not pushed yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import msgspec

from sluicemq.codec import CONTENT_TYPE, JSON
from sluicemq.forward import Forward
from sluicemq.headers import as_headers
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.options import JobOptions
from sluicemq.receipt import PushReceipt
from sluicemq.reply import Reply

if TYPE_CHECKING:
    from sluicemq.producer import Producer

#: Headers of a task's job: its kind, the steps behind it as JSON, and the seconds that it may take.
KIND: Final = "kind"
THEN: Final = "then"
TIMEOUT: Final = "timeout"


class Plan(msgspec.Struct, omit_defaults=True):
    """A step as it travels in the job before it: in the header ``then``, or in the payload of a group.

    ``takes``: the argument that gets the result of the step before.
    """

    queue: str
    kind: str
    arguments: msgspec.Raw
    takes: str | None = None
    options: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    then: list[Plan] = []

    def forward(self, result: bytes | None = None) -> Forward:
        """Return the move to this step; ``result``: that of the step before, as JSON."""
        payload = bytes(self.arguments)
        if self.takes is not None:
            given = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
            payload = msgspec.json.encode({**given, self.takes: msgspec.Raw(result or b"null")})
        return Forward(self.queue, payload, headers=headers_of(self), **self.options)

    def in_line(self) -> list[Plan]:
        """Return it and the steps behind it, one after the other."""
        return [msgspec.structs.replace(self, then=[]), *self.then]


def headers_of(plan: Plan) -> dict[str, Any]:
    """Return the headers of a step's job."""
    then = {THEN: msgspec.json.encode(plan.then).decode()} if plan.then else {}
    return {CONTENT_TYPE: JSON.content_type, **plan.headers, KIND: plan.kind, **then}


class Step:
    """One call of a task, or several together; ``push`` makes a job of it.

    ``task.s(...)``, :func:`~sluicemq.chain` and :func:`~sluicemq.group` make one.
    """

    __slots__ = ("_decode", "_producer", "job_id", "plan")

    def __init__(
        self,
        producer: Callable[[], Producer],
        plan: Plan,
        decode: Callable[[bytes], Any],
        job_id: str | None = None,
    ) -> None:
        self._producer = producer
        self._decode = decode
        self.plan = plan
        self.job_id = job_id

    def push(self, **options: Unpack[JobOptions]) -> PushReceipt:
        """Push its job, and return at once. ``options`` are those of :meth:`~sluicemq.Producer.push`."""
        return self._producer().push(*self._place, id=self.job_id, **self._with(options))

    def call(self, timeout: float | None = 30.0, **options: Unpack[JobOptions]) -> Any:
        """Push its job, and wait for the result; raises as :meth:`~sluicemq.Producer.call` does.

        Raises RuntimeError in a coroutine: nothing else would run in its event loop, perhaps not the task.
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(f"call would block the event loop until {self.plan.kind} is done: await acall")
        data = self._producer().call(*self._place, timeout, id=self.job_id, **self._with(options))
        return self._decode(data)

    def submit(self, **options: Unpack[JobOptions]) -> Reply:
        """Push its job, and return a future of the result, whose ``json()`` waits for it."""
        return self._producer().submit(*self._place, id=self.job_id, **self._with(options))

    async def apush(self, **options: Unpack[JobOptions]) -> PushReceipt:
        """Push its job, and return when it is stored; raises the broker's refusal.

        In a thread only while too much is unconfirmed. Cancelled, the job is pushed nevertheless.
        """
        producer = self._producer()
        receipt = producer._made(_AwaitedReceipt, *self._place, self.job_id, self._with(options))
        receipt.loop = asyncio.get_running_loop()
        receipt.answered = asyncio.Event()
        if producer._has_room(receipt._size):
            producer._enqueue(receipt)
        else:
            await asyncio.to_thread(producer._enqueue, receipt)
        await receipt.answered.wait()
        receipt.wait()
        return receipt

    async def acall(self, timeout: float | None = 30.0, **options: Unpack[JobOptions]) -> Any:  # noqa: ASYNC109 - as call
        """Push its job, and return the result; raises TimeoutError, or why the job has none."""
        producer, (queue, payload) = self._producer(), self._place
        submit = partial(producer.submit, queue, payload, id=self.job_id, **self._with(options))
        reply = submit() if producer._has_room(len(payload)) else await asyncio.to_thread(submit)
        try:
            async with asyncio.timeout(timeout):
                return self._decode(await asyncio.wrap_future(reply))
        finally:
            reply.give_up()

    def then(self, *steps: Step) -> Self:
        """Return this step with others behind it: ``group(a.s(1), a.s(2)).then(b.s(PREVIOUS))``.

        Equal to :func:`~sluicemq.chain` of all of them.
        """
        for step in steps:
            step.check_moves()
        plans = [plan for step in steps for plan in step.plan.in_line()]
        plan = msgspec.structs.replace(self.plan, then=[*self.plan.then, *plans])
        return type(self)(self._producer, plan, (steps or (self,))[-1]._decode, self.job_id)

    def check_moves(self) -> None:
        """Raise TypeError for options that a job can't get when it is forwarded, or is a child."""
        if self.job_id is not None:
            raise TypeError(f"{self.plan.kind} has the id of its flow: leave {self.job_id!r} out")
        self.plan.forward()

    def beside(self, plan: Plan) -> Self:
        """Return a step that goes to the producer of this one, and has no result."""
        return type(self)(self._producer, plan, _nothing)

    @property
    def _place(self) -> tuple[str, bytes]:
        if self.plan.takes is not None:
            raise TypeError(
                f"{self.plan.kind} has no step before it whose result could be {self.plan.takes!r}"
            )
        return self.plan.queue, bytes(self.plan.arguments)

    def _with(self, options: JobOptions) -> Any:
        own: Mapping[str, Any] = options.get("headers") or {}
        return {**self.plan.options, **options, "headers": {**own, **headers_of(self.plan)}}

    def __repr__(self) -> str:
        return f"<Step {self.plan.kind} of queue {self.plan.queue}>"


class _AwaitedReceipt(PushReceipt):
    """The receipt of a push for which a coroutine waits."""

    __slots__ = ("answered", "loop")

    loop: asyncio.AbstractEventLoop
    answered: asyncio.Event

    def _settle(self, error: SluiceError | None = None) -> None:
        super()._settle(error)
        with suppress(RuntimeError):  # its loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self.answered.set)


def plain_options(options: JobOptions) -> dict[str, Any]:
    """Return options in values that JSON holds, with spans of time in seconds; raises for wrong ones."""
    return as_headers(options)[0] or {}


def _nothing(_data: bytes) -> None:
    """Return None: a group has no result."""
