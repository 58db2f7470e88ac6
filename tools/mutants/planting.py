"""Plants one change into the syntax tree of one function, so that a test can be asked if it sees that.

A place is ``package.module:function``, ``package.module:Class.method`` or ``package.module:CONSTANT``.
A change is one of these, and must fit exactly one node there, the innermost:

========================== ==========================================================================
``lose key NAME``          an entry of a dict: ``"NAME": …`` or ``Some.NAME: …``
``lose argument NAME``     a keyword argument of a call
``lose operand NAME``      the operand of an ``and`` or ``or`` that names it
``lose item NAME``         an item of a list, tuple, set or sum of lists that names it
``leave out NAME``         a statement that calls ``NAME``; nothing takes its place
``suppose NAME is VALUE``  the condition of an ``if`` or ``while`` that names it has this value
``flip NAME``              a comparison that names it says the opposite
``return VALUE``           the function does nothing but return this
``NAME becomes VALUE``     an assignment to ``NAME``, or an argument of this name, has this value
``EXPR becomes VALUE``     another expression takes the place of this one
========================== ==========================================================================

``near TEXT`` behind it chooses among several nodes that which has this text. Changes that must go
together are joined by `` and then ``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = {"sluicemq": "clients", "sluicemq_broker": "broker", "sluicemq_devices": "devices"}
_OPPOSITES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    one: other
    for pair in (
        (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    )
    for one, other in (pair, pair[::-1])
}  # fmt: skip

#: What a change does to a node: it returns what takes its place, or None where it does not fit.
_Change = Callable[[ast.AST], ast.AST | None]


class DoesNotFit(Exception):
    """The place is not there, or the change fits no node of it, or several."""


def file_of(place: str) -> Path:
    """Return the file of a place, below the root of the tree."""
    module = place.partition(":")[0]
    path = Path(PACKAGES[module.partition(".")[0]], *module.split("."))
    return path.with_suffix(".py") if (ROOT / path.with_suffix(".py")).exists() else path / "__init__.py"


def planted(source: str, place: str, changes: str) -> str:
    """Return a source with changes in a place; raises DoesNotFit."""
    tree = ast.parse(source)
    for change in changes.split(" and then "):
        _plant(_find(tree, place.partition(":")[2]), change)
    return ast.unparse(ast.fix_missing_locations(tree))


def _plant(target: ast.AST, change: str) -> None:
    what, _, near = change.partition(" near ")
    if what.startswith("return "):
        assert isinstance(target, ast.FunctionDef)
        target.body = ast.parse(f"def f():\n    {what}").body[0].body  # type: ignore[attr-defined]
        return
    plant = _Plant(_change(what), near)
    plant.visit(target)
    if len(plant.fitting) != 1:
        found = "; ".join(ast.unparse(fit)[:80] for fit in plant.fitting) or "nothing"
        raise DoesNotFit(f"{change!r} fits {len(plant.fitting)} nodes: {found}")
    plant.chosen = plant.fitting[0]
    plant.visit(target)


class _Plant(ast.NodeTransformer):
    """First finds the nodes that a change fits, and then changes the one that was chosen."""

    def __init__(self, change: _Change, near: str) -> None:
        self._change = change
        self._near = near
        self.fitting: list[ast.AST] = []
        self.chosen: ast.AST | None = None

    def visit(self, node: ast.AST) -> ast.AST:
        before = len(self.fitting)
        self.generic_visit(node)
        if self.chosen is not None:
            return (self._change(node) or node) if node is self.chosen else node
        if len(self.fitting) > before:
            return node  # the innermost one is meant
        if (not self._near or self._near in ast.unparse(node)) and self._fits(node):
            self.fitting.append(node)
        return node

    def _fits(self, node: ast.AST) -> bool:
        return self._change(deepcopy(node)) is not None


def _change(what: str) -> _Change:
    name, becomes, value = what.partition(" becomes ")
    if becomes:
        return lambda node: _becomes(node, name, value)
    condition, _, value = what.removeprefix("suppose ").partition(" is ")
    if value:
        return lambda node: _suppose(node, condition, value)
    verb, _, name = what.rpartition(" ")
    if verb not in _CHANGES:
        raise DoesNotFit(f"there is no change {what!r}")
    return lambda node: _CHANGES[verb](node, name)


def _lose_key(node: ast.AST, name: str) -> ast.AST | None:
    if not isinstance(node, ast.Dict):
        return None
    left = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if not _is(key, name)]
    if len(left) == len(node.keys):
        return None
    node.keys, node.values = [key for key, _ in left], [value for _, value in left]
    return node


def _is(key: ast.expr | None, name: str) -> bool:
    if isinstance(key, ast.Constant):
        return bool(key.value == name)
    return (
        isinstance(key, ast.Attribute | ast.Name)
        and (key.attr if isinstance(key, ast.Attribute) else key.id) == name
    )


def _lose_argument(node: ast.AST, name: str) -> ast.AST | None:
    if not isinstance(node, ast.Call) or all(keyword.arg != name for keyword in node.keywords):
        return None
    node.keywords = [keyword for keyword in node.keywords if keyword.arg != name]
    return node


def _lose_operand(node: ast.AST, name: str) -> ast.AST | None:
    left = _without(node.values, name) if isinstance(node, ast.BoolOp) else None
    if left is None:
        return None
    return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)  # type: ignore[attr-defined]


def _lose_item(node: ast.AST, name: str) -> ast.AST | None:
    if not isinstance(node, ast.List | ast.Tuple | ast.Set) or (left := _without(node.elts, name)) is None:
        return None
    node.elts = left
    return node


def _without(parts: list[ast.expr], name: str) -> list[ast.expr] | None:
    """Return the parts without the one that has this name; None if it is in none, or in several."""
    left = [part for part in parts if name not in _names(part)]
    return left if len(left) == len(parts) - 1 else None


def _leave_out(node: ast.AST, name: str) -> ast.AST | None:
    calls = isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete) and name in _names(node)
    return ast.Pass() if calls else None


def _suppose(node: ast.AST, name: str, value: str) -> ast.AST | None:
    if not isinstance(node, ast.If | ast.While | ast.IfExp) or name not in _names(node.test):
        return None
    node.test = ast.Constant(ast.literal_eval(value))
    return node


def _flip(node: ast.AST, name: str) -> ast.AST | None:
    if not isinstance(node, ast.Compare) or name not in _names(node):
        return None
    node.ops = [_OPPOSITES[type(op)]() for op in node.ops]
    return node


def _becomes(node: ast.AST, name: str, value: str) -> ast.AST | None:
    made = ast.parse(value, mode="eval").body
    if isinstance(node, ast.keyword) and node.arg == name:
        node.value = made
        return node
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    if isinstance(node, ast.Assign | ast.AnnAssign) and any(
        ast.unparse(target) == name for target in targets
    ):
        node.value = made
        return node
    is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    if isinstance(node, ast.expr) and is_read and not name.isidentifier():
        return made if ast.unparse(node) == name else None
    return None


_CHANGES: Final[dict[str, Callable[[ast.AST, str], ast.AST | None]]] = {
    "lose key": _lose_key,
    "lose argument": _lose_argument,
    "lose operand": _lose_operand,
    "lose item": _lose_item,
    "leave out": _leave_out,
    "flip": _flip,
}


def _names(node: ast.AST) -> set[str]:
    """Return all names, attributes and texts below a node."""
    return {
        str(value)
        for child in ast.walk(node)
        for value in (getattr(child, "id", None), getattr(child, "attr", None), getattr(child, "value", None))
        if isinstance(value, str)
    }


def _find(tree: ast.Module, name: str) -> ast.AST:
    node: ast.AST = tree
    for part in name.split("."):
        found = [child for child in _defined(node) if part in _called(child)]
        if not found:
            raise DoesNotFit(f"there is no {name}")
        node = found[-1]
    return node


def _defined(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If | ast.With | ast.Try):
            yield from _defined(child)


def _called(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]
