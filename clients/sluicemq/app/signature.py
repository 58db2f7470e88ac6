"""Arguments of a task as the payload of its job: one JSON object, each argument by its name.

``send_mail("a@b", subject="hi")`` travels as ``{"to": "a@b", "subject": "hi"}``. There is one way to write
down a call, so a program in another language needs no order of arguments, and a parameter may move, or get a
default, while old jobs wait. The values of ``*args`` are a list by its name; those of ``**kwargs`` stand
beside the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias
from typing import Any, Final, get_type_hints

import msgspec

from sluicemq.protocol.readable import said


class _Previous:
    """Stands for the result of the step before, among the arguments of a step of a chain."""

    def __repr__(self) -> str:
        return "PREVIOUS"


#: Given as an argument in a chain: the result of the step before.
PREVIOUS: Final[Any] = _Previous()


class Signature:
    """The parameters of a task's function; ``bind``: the first one is the job, which does not travel."""

    def __init__(self, function: Callable[..., Any], *, bind: bool) -> None:
        self._function = function
        self._bind = bind

    @cached_property
    def _parameters(self) -> inspect.Signature:
        signature = inspect.signature(self._function)
        if not self._bind:
            return signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    @cached_property
    def _types(self) -> dict[str, Any]:
        """Return the type of each annotated parameter, and of the ``return``."""
        return get_type_hints(self._function, include_extras=True)

    @cached_property
    def _others(self) -> str | None:
        """Return the name of ``**kwargs``."""
        kinds = {parameter.kind: parameter.name for parameter in self._parameters.parameters.values()}
        return kinds.get(inspect.Parameter.VAR_KEYWORD)

    def check(self) -> None:
        """Raise an error for annotations that name what is not there, or types that JSON can't tell apart."""
        if self._bind and not inspect.signature(self._function).parameters:
            raise TypeError("bind=True: the first parameter gets the job, and there is none")
        for name in self._parameters.parameters:
            try:
                msgspec.json.Decoder(self._types.get(name, Any))
            except TypeError as error:
                raise TypeError(f"argument {name!r}: {said(error)}") from error

    def encode(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[bytes, str | None]:
        """Return the payload of a call, and which argument is the result of the step before.

        Raises TypeError for arguments that the function, or JSON, does not take. They are converted back as
        a worker does, so that a value of a wrong type is found here.
        """
        named = dict(self._parameters.bind(*args, **keywords).arguments)
        if self._others is not None:
            others = named.pop(self._others, {})
            if both := named.keys() & others.keys():
                raise TypeError(f"got two values for {min(both)!r}")
            named |= others
        waiting = [name for name, value in named.items() if value is PREVIOUS]
        if len(waiting) > 1:
            raise TypeError(f"only one argument is PREVIOUS, not {' and '.join(waiting)}")
        for name in waiting:
            del named[name]
        payload = as_json(named)
        self._converted(msgspec.json.decode(payload))
        return payload, waiting[0] if waiting else None

    def decode(self, payload: bytes) -> inspect.BoundArguments:
        """Return the arguments of a job; raises TypeError for a payload that the function does not take.

        Arguments that are not there have their defaults, so that an old job can be called by a newer
        function.
        """
        try:
            sent = msgspec.json.decode(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise TypeError(f"the payload is not JSON: {said(error)}") from error
        if not isinstance(sent, dict):
            raise TypeError("the payload is no JSON object that has the arguments by name")
        values = self._converted(sent)
        places = self._parameters.parameters
        arguments = {name: values.pop(name) for name in places if name in values and name != self._others}
        for place in places.values():
            optional = (
                place.kind in (place.VAR_POSITIONAL, place.VAR_KEYWORD) or place.default is not place.empty
            )
            if not optional and place.name not in arguments:
                raise TypeError(f"argument {place.name!r} is missing")
        if self._others is not None:
            arguments[self._others] = values
        bound = inspect.BoundArguments(self._parameters, arguments)
        bound.apply_defaults()
        return bound

    def result(self, data: bytes) -> Any:
        """Return a result by the type that the function declares; None for an empty one."""
        if not data:
            return None
        return _convert("result", msgspec.json.decode(data), self._types.get("return", Any))

    def _converted(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _convert(f"argument {name!r}", value, self._type_of(name)) for name, value in sent.items()
        }

    def _type_of(self, name: str) -> Any:
        place = self._parameters.parameters.get(name)
        if place is None or place.kind is place.VAR_KEYWORD:
            if self._others is None:
                raise TypeError(f"there is no argument {name!r}")
            return self._types.get(self._others, Any)
        declared = self._types.get(name, Any)
        return GenericAlias(list, declared) if place.kind is place.VAR_POSITIONAL else declared


def as_json(value: Any) -> bytes:
    """Return a value as JSON; raises TypeError for one that has no form."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a value has no form in JSON: {said(error)}") from error


def _convert(what: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_built)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise TypeError(f"{what}: {said(error)}") from error


def _plain(value: Any) -> Any:
    """Return a model of pydantic as JSON has it."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__name__} has no form in JSON: give a dataclass, or a model")
    return dump(mode="json")


def _built(kind: Any, value: Any) -> Any:
    """Return a model of pydantic."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(
            f"no {getattr(kind, '__name__', kind)} can be made of JSON: use a dataclass, or a model"
        )
    return validate(value)
