"""The client for questions and administration, for programs and for the command line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Any, Final, Unpack

from sluicemq._deprecated import Keyword, Moved, endpoint_first, register
from sluicemq.arguments import checked
from sluicemq.codec import JSON, CodecArgument
from sluicemq.life import LongLived
from sluicemq.namespaces import Namespaces, as_sent
from sluicemq.namespaces.calls import Calls
from sluicemq.protocol import wire
from sluicemq.protocol.errors import UnfinishedError, from_code
from sluicemq.protocol.wire import TaskField
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.asker import Asker
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions

#: Seconds between two looks of the former ``follow``.
_PAUSE: Final = 0.25


class _Former(Moved):
    """A method of 0.3 that is now a verb of a namespace; it still returns what the broker sent."""

    def __init__(self, path: str, write: str = "", adapt: Callable[[Any], Any] = lambda found: found) -> None:
        super().__init__(f"_plain.{path}", f"Client.{write or path}", adapt)

    def __set_name__(self, _owner: type, name: str) -> None:
        self._old = f"Client.{name}"
        register(self._old, self._write)


def _follow(operations: Any) -> Callable[..., Any]:
    def follow(id: str, tell: Callable[[dict[str, Any]], None] = lambda _task: None) -> Any:  # noqa: A002
        while True:
            task = operations.get(id)
            tell(task)
            if task["state"] == wire.TaskState.DONE:
                return task["answer"]
            if error := task.get("error"):
                raise from_code(error["code"], error["message"])
            if "ended_at" in task:
                so_far = task[TaskField.DONE], task.get(TaskField.TOTAL)
                raise UnfinishedError(f"task {id} was {task['state']}", id, *so_far)
            sleep(_PAUSE)

    return follow


def _users(ask: Callable[..., Any]) -> Callable[..., Any]:
    def users(action: str = wire.LIST, **fields: Any) -> Any:
        return ask(wire.USERS, action, fields, repeat=action in wire.ONLY_LOOK)

    return users


def _waiting(order: Callable[..., Any]) -> Callable[..., Any]:
    """Return an order that waits until shortly before the time-out, as in 0.3."""

    def wait(*args: Any, wait: float | None = None, **given: Any) -> Any:
        return order(*args, wait=wait, **given)

    return wait


class _FormerMethods:
    """The methods of a client in 0.3: where each is now."""

    queue = _Former("queues.get")
    settings = _Former("queues.settings")
    set_settings = _Former("queues.set_settings")
    unset_settings = _Former("queues.unset_settings")
    pause = _Former("queues.pause")
    resume = _Former("queues.resume")
    purge = _Former("queues.purge", adapt=_waiting)
    delete = _Former("queues.delete", adapt=_waiting)
    peek = _Former("jobs.list")
    show = _Former("jobs.get")
    change = _Former("jobs.change")
    promote = _Former("jobs.promote")
    cancel = _Former("jobs.cancel")
    result = _Former("jobs.result")
    reserve = _Former("jobs.reserve")
    pop = _Former("jobs.pop")
    redrive = _Former("dead_letters.redrive", adapt=_waiting)
    discard = _Former("dead_letters.discard", adapt=_waiting)
    tasks = _Former("operations.list")
    task = _Former("operations.get")
    cancel_task = _Former("operations.cancel")
    follow = _Former("operations", "operations.wait", _follow)
    stream = _Former("streams.get")
    trim = _Former("streams.trim")
    erase = _Former("streams.erase")
    seek = _Former("subscriptions.seek")
    release = _Former("subscriptions.release")
    forget = _Former("subscriptions.delete")
    add_schedule = _Former("schedules.add")
    remove_schedule = _Former("schedules.delete")
    pause_schedule = _Former("schedules.pause")
    resume_schedule = _Former("schedules.resume")
    run_schedule = _Former("schedules.run")
    upgrade = _Former("brokers.upgrade")
    users = _Former("_calls.asker.ask", "principals", _users)


@endpoint_first(patient=Keyword("wait"))
@checked()
class Client(LongLived, Namespaces, _FormerMethods):
    """A connection for questions and administration; for any number of threads or greenlets.

    Its verbs are in namespaces: ``client.queues.pause("mail")``, ``client.jobs.get("mail", id)``.

    ``endpoint``: where the broker is; None means ``SLUICEMQ_ENDPOINT``, else the profile's, else
    ``tcp://127.0.0.1:5550``.

    It connects by itself and stays connected. Every verb waits up to ``timeout`` seconds. It raises
    :class:`~sluicemq.TimeoutError` if no broker has answered by then, and the broker's error if it refuses.
    After a lost connection, reads, ``pause`` and ``resume`` are sent again. A verb that changes jobs raises
    :class:`~sluicemq.UnavailableError` instead, since the change may have been made or not.

    With ``wait=False`` every verb raises :class:`~sluicemq.UnavailableError` at once if nothing listens at
    ``endpoint``, instead of waiting for a broker. ``codec`` decodes the payloads of ``job.value()`` whose
    content type is not JSON. In the child of a fork the client connects again at its
    first use.
    """

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        wait: bool = True,
        codec: CodecArgument = JSON,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._stop_asked = threading.Event()
        self._asker = Asker(Access.chosen(endpoint, access), timeout=timeout, patient=wait, codec=codec)
        self._plain = as_sent(self._asker)
        super().__init__(Calls(self._asker))

    @property
    def timeout(self) -> float:
        """Return the seconds that each verb waits for its answer; may be set."""
        return self._asker.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._asker.timeout = seconds

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._asker.connected_to

    @property
    def permissions(self) -> dict[str, list[str]] | None:
        """Return what this client may do: patterns of queues and streams by action, as the broker said last.

        None: everything, or the broker, which may be of an older version, has not said it.
        """
        return self._asker.permissions

    def close(self, timeout: float | None = None) -> None:
        """Disconnect from the broker, within ``timeout`` seconds (None: 1); may be called again."""
        self._stop_asked.set()
        self._asker.close(1.0 if timeout is None else timeout)

    def _to_signal(self) -> Connection:
        return self._asker.connection

    def __dir__(self) -> list[str]:
        """Return what it has; without the names of 0.3, which nobody should find."""
        former = {name for name, value in vars(_FormerMethods).items() if isinstance(value, Moved)}
        return [name for name in super().__dir__() if name not in former]
