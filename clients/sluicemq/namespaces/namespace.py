"""A namespace of the client, and one whose name was a method of version 0.3."""

from __future__ import annotations

from typing import Any, ClassVar

from sluicemq._deprecated import register, warn
from sluicemq.namespaces.calls import Calls, PlainCalls


class Namespace:
    """Verbs for one kind of things at a broker; it has nothing else that is public."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __repr__(self) -> str:
        asker = self._calls.asker
        return f"<{type(self).__name__} at {asker.connected_to or asker.access.endpoint}>"


class CalledBefore(Namespace):
    """A namespace that was a method: ``client.queues()`` is now ``client.queues.list()``."""

    __slots__ = ()

    _old: ClassVar[str]
    _verb: ClassVar[str]

    def __init_subclass__(cls, *, verb: str) -> None:
        """Note which verb stands for a call of the namespace itself."""
        super().__init_subclass__()
        cls._old, cls._verb = f"Client.{cls.__name__.lower()}()", verb
        register(cls._old, f"Client.{cls.__name__.lower()}.{verb}()")

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Return the answer of the verb that was this method in 0.3, as the broker sent it."""
        warn(self._old)
        return self._called(type(self)(PlainCalls(self._calls.asker)), *args, **given)

    def _called(self, plain: Any, *args: Any, **given: Any) -> Any:
        return getattr(plain, self._verb)(*args, **given)
