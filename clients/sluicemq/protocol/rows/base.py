"""The rules of all rows: how they come from the wire, and how they go onto it.

Fields without a default have been there since version 0.3, so they are always written. A field with a default
is left out where it has that value. A field that came later has a default: an older broker does not send it.
Unknown fields, of a newer broker, are ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sluicemq.protocol.errors import BadFramesError

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, or a part of it: its fields are as on the wire. Times are Unix seconds."""


class FormerMap:
    """A row that was a map in version 0.3, and can still be read as one."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        """Return a field as it is on the wire; deprecated."""
        kind = type(self).__name__
        warnings.warn(f'{kind}["{name}"] is now {kind}.{name}', DeprecationWarning, stacklevel=2)
        return plain(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        """Yield the names of its fields; deprecated."""
        return iter(plain(self))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method of a map; deprecated."""
            if name not in ("keys", "values", "items", "get"):
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            return getattr({key: self[key] for key in self}, name)


def from_wire(type_: type[T], value: object) -> T:
    """Return an answer as this type, such as ``list[QueueRow]``; raises BadFrames if it is none."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise BadFramesError(f"the answer is not as this version expects: {error}") from None


def from_document(type_: type[R], document: Mapping[str, Any]) -> R:
    """Return a document of MongoDB as a row, without the fields that have values of a wrong type.

    What is not there and has no default is the zero of its type.
    """
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError:
        return type_(**{field.name: _field(field, document) for field in msgspec.structs.fields(type_)})


def plain(value: Any) -> Any:
    """Return rows as the maps and arrays that MessagePack and JSON have; bytes stay bytes."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=_number)


def _number(value: object) -> int | float:
    """Return a number of MongoDB's own types, as a document of a job may have one, as Python's."""
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"{type(value).__name__} has no form on the wire")


def _field(field: msgspec.structs.FieldInfo, document: Mapping[str, Any]) -> Any:
    if field.encode_name in document:
        try:
            return msgspec.convert(document[field.encode_name], field.type)
        except msgspec.ValidationError:
            pass
    return _ZEROS.get(field.type) if field.required else field.default


_ZEROS: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}
