"""Verbs of a client for threads, awaited: arguments, checks, words and answers are stated there only.

Checkers of types read them through these classes, too.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sluicemq import operation
from sluicemq.aio.operation import Operation

P = ParamSpec("P")
R = TypeVar("R")


class Verb:
    """A method that calls the verb of a class for threads, over what awaits its requests."""

    def __init__(self, verb: Callable[..., Any]) -> None:
        self._call = self._calling(verb)
        functools.update_wrapper(self._call, verb)
        self.__doc__ = verb.__doc__

    def _calling(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError

    def __get__(self, namespace: Any, _owner: Any = None) -> Any:
        return self._call if namespace is None else MethodType(self._call, namespace)


class Awaited(Verb, Generic[P, R]):
    """A verb that is awaited."""

    def __init__(self, verb: Callable[Concatenate[Any, P], R]) -> None:
        super().__init__(verb)

    def _calling(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(namespace: Any, /, *args: Any, **given: Any) -> Any:
            return await verb(namespace._verbs, *args, **given)

        return call

    def __get__(self, namespace: Any, _owner: Any = None) -> Callable[P, Coroutine[Any, Any, R]]:
        return super().__get__(namespace)  # type: ignore[no-any-return]


class Operating(Verb, Generic[P, R]):
    """A verb that is awaited, and whose outcome is, too."""

    def __init__(self, verb: Callable[Concatenate[Any, P], operation.Operation[R]]) -> None:
        super().__init__(verb)

    def _calling(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(namespace: Any, /, *args: Any, **given: Any) -> Any:
            return Operation(await verb(namespace._verbs, *args, **given))

        return call

    def __get__(self, namespace: Any, _owner: Any = None) -> Callable[P, Coroutine[Any, Any, Operation[R]]]:
        return super().__get__(namespace)  # type: ignore[no-any-return]


class Each(Verb, Generic[P, R]):
    """A verb over whose findings ``async for`` goes."""

    def __init__(self, verb: Callable[Concatenate[Any, P], Iterator[R]]) -> None:
        super().__init__(verb)

    def _calling(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(namespace: Any, /, *args: Any, **given: Any) -> Any:
            return verb(namespace._verbs, *args, **given)

        return call

    def __get__(self, namespace: Any, _owner: Any = None) -> Callable[P, AsyncIterator[R]]:
        return super().__get__(namespace)  # type: ignore[no-any-return]
