"""The result of a job, in time."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from sluicemq.errors import SluiceError
from sluicemq.receipt import Receipt


class Reply(Future[bytes]):
    """The result of one pushed job, in time; ``receipt`` is that of its push.

    A :class:`concurrent.futures.Future`: its ``result`` raises the broker's error. To cancel it is to
    wait for it no more; the job is done all the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.receipt: Receipt
        self.given_up = False

    def cancel(self) -> bool:
        """Wait no more for the result; False if it is there."""
        self.given_up = super().cancel()
        return self.given_up

    def tell(self, value: Any, error: SluiceError | None) -> None:
        """End it; called through the mailbox."""
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
