"""The result of a job, as a future."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from sluicemq import forks
from sluicemq.aside import CallBack, refuse_to_wait, runs_no_user_code
from sluicemq.codec import JSON, Codec, decoded
from sluicemq.complaints import complain
from sluicemq.protocol.errors import CancelledError, SluiceError
from sluicemq.receipt import PushReceipt

#: Seconds that the broker has to answer a cancel, at most.
CANCEL_WITHIN: Final = 10.0


class Reply(Future[bytes]):
    """The result of one pushed job; ``receipt`` is that of its push.

    A :class:`concurrent.futures.Future`: its ``result`` raises the broker's error, and :meth:`cancel` cancels
    the job. In a child that was forked since, ``result`` and ``exception`` raise
    :class:`~sluicemq.ForkedError`: only the parent gets the answer.
    """

    def __init__(self, call_back: CallBack, codec: Codec = JSON) -> None:
        """``call_back`` runs callbacks; called through the mailbox. ``codec``: that of its producer."""
        super().__init__()
        self._codec = codec
        self._call_back = call_back
        self.receipt: PushReceipt
        self.send_cancel: Callable[[Callable[[bool], None]], None]
        self.given_up = False
        self._cancelling = False
        self._generation = forks.generation

    def result(self, timeout: float | None = None) -> bytes:
        """Return the result, waiting up to ``timeout`` seconds; raises TimeoutError, or the job's error."""
        self._refuse_in_child()
        return super().result(timeout)

    def value(self, timeout: float | None = None) -> Any:
        """Return the result as the producer's codec decodes it; raises as :meth:`result`, and ValueError."""
        return decoded(self._codec, self.result(timeout), f"the result of job {self.receipt.id}")

    def json(self, timeout: float | None = None) -> Any:
        """Return the result, which is JSON; raises as :meth:`result`, and ValueError for other bytes."""
        return decoded(JSON, self.result(timeout), f"the result of job {self.receipt.id}")

    def text(self, timeout: float | None = None) -> str:
        """Return the result, which is text in UTF-8; raises as :meth:`result`, and ValueError."""
        return self.result(timeout).decode()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, waiting for it; None if there is a result."""
        self._refuse_in_child()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the job, and this future with it; False if a worker has the job, or it has ended.

        Waits for the broker's answer, 10 seconds at most: False, too, without one, or without the permission
        to manage the queue. In an event loop, which it must not block, it only sends the order: the future is
        cancelled whatever becomes of the job.
        """
        if self.done():
            return self.cancelled()
        self._refuse_in_child()
        if _in_event_loop():
            with suppress(SluiceError):
                self.send_cancel(lambda _is_cancelled: None)
            return self.give_up()
        answered = threading.Event()

        def end(is_cancelled: bool) -> None:  # noqa: FBT001 - the answer
            if is_cancelled:
                self.give_up()
            answered.set()

        until = monotonic() + CANCEL_WITHIN
        self._cancelling = True
        with suppress(SluiceError):  # it is refused, or the connection has ended
            self.receipt.wait(CANCEL_WITHIN)
            self.send_cancel(end)
            answered.wait(max(0.0, until - monotonic()))
        return self.cancelled()

    def give_up(self) -> bool:
        """Stop waiting for the result: the job is done nevertheless; False if the result is there."""
        self.given_up = super().cancel()
        return self.given_up

    def add_done_callback(self, fn: Callable[[Future[bytes]], object]) -> None:
        """Call ``fn(self)`` once it is done, in the thread of the producer's callbacks; or now, if it is.

        ``fn`` may wait, also for this producer; others wait for it. Exceptions of ``fn`` are logged.
        """

        def guarded(reply: Future[bytes]) -> None:
            try:
                fn(reply)
            except BaseException:  # noqa: BLE001 - also SystemExit: the other replies must get theirs
                complain("a callback of the result of job %s failed", self.receipt.id, level=logging.ERROR)

        def soon(reply: Future[bytes]) -> None:
            if runs_no_user_code():
                self._call_back(guarded, reply)
            else:  # done already, or cancelled
                guarded(reply)

        super().add_done_callback(soon)

    def resolve(self, value: Any, error: SluiceError | None) -> None:
        """Set the result or the error; called through the mailbox."""
        if self._cancelling and isinstance(error, CancelledError):
            self.give_up()
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def _refuse_in_child(self) -> None:
        if self._generation == forks.generation:
            if not self.done():
                refuse_to_wait(f"the result of job {self.receipt.id}")
            return
        self._condition = threading.Condition()  # the parent's may be held by a thread that is not here
        if not self.done():
            forks.refuse(
                f"the result of job {self.receipt.id}", self._generation, "ask with Client.result here"
            )


def _in_event_loop() -> bool:
    """Return whether an event loop runs in this thread; asyncio takes long to load."""
    loaded = sys.modules.get("asyncio")
    return loaded is not None and loaded._get_running_loop() is not None
