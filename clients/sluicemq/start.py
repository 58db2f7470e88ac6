"""Start: where reading a stream begins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar

from sluicemq import arguments
from sluicemq.protocol.readable import brief
from sluicemq.protocol.rules import MOMENT, rfc3339

_S = TypeVar("_S", bound="Start")

#: The watermark that stands for the newest message.
NEWEST: Final = -1


class Start:
    """Where reading a stream begins: :meth:`oldest`, :meth:`new`, :meth:`at` or :meth:`since`.

    ``Start.at(reader.position + 1)`` goes on behind the last message that a reader has returned.
    """

    __slots__ = ("_name", "_value")

    _name: str
    _value: float

    @classmethod
    def oldest(cls) -> Self:
        """Begin with the oldest message that the stream keeps."""
        return _made(cls, "oldest", 0)

    @classmethod
    def new(cls) -> Self:
        """Begin with the first message that is published from now on."""
        return _made(cls, "new", NEWEST)

    @classmethod
    def at(cls, sequence: int) -> Self:
        """Begin with the message of this number, or with the next one that is kept; the first one has 1."""
        arguments.whole("sequence", sequence)
        if sequence < 1:
            raise ValueError(f"sequence is {brief(sequence)}: give the number of a message, from 1 on")
        return _made(cls, "at", sequence)

    @classmethod
    def since(cls, time: float | datetime | str) -> Self:
        """Begin with the first message that is not older than ``time``.

        ``time``: Unix seconds, a ``datetime`` with a time zone, or RFC 3339 text. Raises ValueError.
        """
        try:
            moment = MOMENT.read(time)
        except ValueError as error:
            raise ValueError(f"time is {brief(time)}, expected {error}") from None
        return _made(cls, "since", rfc3339(moment) if isinstance(moment, str) else moment)

    def __init__(self) -> None:
        raise TypeError("write Start.oldest(), Start.new(), Start.at(sequence) or Start.since(time)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and (self._name, self._value) == (other._name, other._value)

    def __hash__(self) -> int:
        return hash((self._name, self._value))

    def __repr__(self) -> str:
        return f"Start.{self._name}({'' if self._name in ('oldest', 'new') else self._value})"


def _made(kind: type[_S], name: str, value: float) -> _S:
    start = kind.__new__(kind)
    start._name, start._value = name, value
    return start


#: Where everything that a stream keeps is read.
OLDEST: Final = Start.oldest()


def is_start(name: str, value: object) -> None:
    """Check that an argument is a :class:`Start`."""
    if not isinstance(value, Start):
        raise TypeError(f"{name} is a Start, such as Start.new() or Start.at(7), not {brief(value)}")


#: A parameter that is a :class:`Start`, and is checked.
StartArgument: TypeAlias = Annotated[Start, is_start]


def options_of_read(start: Start) -> dict[str, Any]:
    """Return the options of a READ that begins there."""
    if start._name == "new":
        return {"new": True}
    if start._name == "since":
        return {"since": start._value}
    return {"after": watermark_of(start)}


def watermark_of(start: Start, number_since: Callable[[Start], int] | None = None) -> int:
    """Return the number of the message before, or :data:`NEWEST`.

    ``number_since`` returns it for a time, since only the broker knows that.
    """
    if start._name == "since":
        if number_since is None:
            raise ValueError(f"{start} is not possible here: give Start.oldest(), Start.new() or Start.at(7)")
        return number_since(start)
    return int(start._value) - (start._name == "at")


def start_behind(watermark: int | None) -> Start | None:
    """Return the start behind a message, for the numbers that 0.3 took; None of None."""
    if watermark is None:
        return None
    return Start.new() if watermark == NEWEST else Start.at(watermark + 1) if watermark else Start.oldest()
