"""Documents that this version can't read: damaged, written by hand or by another program, or by a later one.

One of them keeps no other from being read. It is set aside: left as it is in MongoDB, passed over, counted
and logged once, until somebody has corrected or removed it. (A job becomes a dead letter besides; see
``jobs/malformed.py``.) What a collection's documents must have is said by its reader, which takes
each field by :func:`field`::

    schedules = readable(collection, collection.find(...), _read)    passes over what _read can't read
    schedule = read_one(collection, collection.find_one(...), _read)  raises SetAside for it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from pymongo.collection import Collection

from sluicemq.protocol.errors import NotFoundError
from sluicemq.protocol.rules import Rule, kept, number, whole
from sluicemq_broker.store.values import Document, seconds

Read = TypeVar("Read")
Reader = Callable[[Document], Read]

#: Documents that this process remembers, so that each is logged once; of further ones it says nothing.
_MOST: Final = 1000
#: Characters of an id, and of a reason, in a line of the log.
_LONGEST: Final = 200

log = logging.getLogger("broker.store")


class Unreadable(Exception):
    """Raised for a document that this version can't read; the text says why."""


class SetAside(NotFoundError):
    """Raised where one document is wanted, and it can't be read; the text says what to do."""


class Damaged(NamedTuple):
    """A document that can't be read: its collection, its id (of any type), and why."""

    database: str
    collection: str
    id: Any
    why: str

    @property
    def cure(self) -> str:
        """The way out: a command for ``mongosh``."""
        shown = repr(self.id)[:_LONGEST]
        named = f"db.getCollection({self.collection!r}).deleteOne({{_id: {shown}}})"
        return f"correct it, or remove it by hand: {named}"

    def __str__(self) -> str:
        shown = repr(self.id)[:_LONGEST]
        return (
            f"document {shown} of collection {self.collection} in database {self.database} can't be read, "
            f"and is set aside: {self.why[:_LONGEST]}; {self.cure}"
        )


class Aside:
    """The documents that this process has set aside; ``tell`` is called once for each."""

    def __init__(self) -> None:
        self.tell: Callable[[], None] = lambda: None
        self._known: dict[tuple[str, str, str], str] = {}

    def note(self, damaged: Damaged) -> None:
        """Count and log a document, unless it is known, for this reason."""
        key = (damaged.database, damaged.collection, repr(damaged.id)[:_LONGEST])
        if self._known.get(key) == damaged.why or len(self._known) >= _MOST:
            return
        self._known[key] = damaged.why
        log.error("%s", damaged)
        self.tell()


#: Of this process. Stores are made in many places, some for one statement: they share what was logged.
ASIDE: Final = Aside()


def readable(documents: Collection[Any], found: Iterable[Document], read: Reader[Read]) -> Iterator[Read]:
    """Yield what ``read`` makes of each document; those that it can't read are set aside.

    ``found`` may raise the driver's errors.
    """
    for document in found:
        one = read_or_damaged(documents, document, read)
        if isinstance(one, Damaged):
            ASIDE.note(one)
        else:
            yield one


def read_one(documents: Collection[Any], stored: Document, read: Reader[Read]) -> Read:
    """Return what ``read`` makes of a document; raises :class:`SetAside` if it can't be read."""
    one = read_or_damaged(documents, stored, read)
    if isinstance(one, Damaged):
        ASIDE.note(one)
        raise SetAside(str(one))
    return one


def read_or_damaged(documents: Collection[Any], stored: Document, read: Reader[Read]) -> Read | Damaged:
    """Return what ``read`` makes of a document, or that it can't be read, and why."""
    try:
        return read(stored)
    except Unreadable as error:
        why = str(error)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    return Damaged(documents.database.name, documents.name, stored.get("_id"), why)


#: Stands for a field that has no default.
_REQUIRED: Final = object()


def field(stored: Mapping[str, Any], name: str, rule: Rule, default: Any = _REQUIRED) -> Any:
    """Return a field by its rule; where it is missing, or null, its default.

    Raises :class:`Unreadable`, which names the field.
    """
    value = stored.get(name)
    if value is None:
        if default is _REQUIRED:
            raise Unreadable(f"it has no {name}")
        return default
    try:
        return rule(value)
    except ValueError as error:
        raise Unreadable(f"its {name} is {str(value)[:64]!r}, expected {error}") from None


def _date(value: Any) -> float:
    if not isinstance(value, datetime):
        raise ValueError("a date")  # noqa: TRY004 - reported like every other wrong value
    return seconds(value)


TEXT: Final = kept("a text", lambda value: isinstance(value, str))
BINARY: Final = kept("binary data", lambda value: isinstance(value, bytes))
FLAG: Final = kept("true or false", lambda value: isinstance(value, bool))
MAP: Final = kept("a map", lambda value: isinstance(value, dict))


def _is_plain(value: Any, deepest: int = 20) -> bool:
    """Return whether a value has a form on the wire."""
    if isinstance(value, dict):
        texts = all(isinstance(key, str) for key in value)
        return texts and deepest > 0 and all(_is_plain(item, deepest - 1) for item in value.values())
    if isinstance(value, list):
        return deepest > 0 and all(_is_plain(item, deepest - 1) for item in value)
    return value is None or isinstance(value, bool | int | float | str | bytes)


#: A value, or a map, that clients are shown.
PLAIN: Final = kept("values that clients can be shown", _is_plain)
PLAIN_MAP: Final = kept(
    "a map of values that clients can be shown", lambda value: isinstance(value, dict) and _is_plain(value)
)
LIST: Final = kept("an array", lambda value: isinstance(value, list))
#: A time in MongoDB's date, as Unix seconds.
DATE: Final = Rule("a date", _date)
NUMBER: Final = number(-(2.0**63), 2.0**63, "a number")


def _count(value: Any) -> int:
    """Return a whole number; who writes by hand may store it as a double."""
    return int(_WHOLE(int(value) if isinstance(value, float) and value.is_integer() else value))


_WHOLE: Final = whole(0, 2**63 - 1, "a whole number")
#: A count, a revision, or the number of a message.
COUNT: Final = Rule(_WHOLE.expected, _count)


def _texts(value: Any) -> list[str]:
    """Return a list of texts; raises ValueError."""
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ValueError("an array of texts")
    return value


TEXTS: Final = Rule("an array of texts", _texts)
