"""Contracts of import-linter that the rooms of this project need: see ``[tool.importlinter]``.

They read what there is: a new file, and a new import that goes down, costs no line of configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

Imports = Iterable[tuple[str, str]]


class Stair(NamedTuple):
    """The order of the rooms of a package, as ``"package: top, left | right, bottom"``."""

    package: str
    steps: dict[str, int]

    @classmethod
    def read(cls, text: str) -> Stair:
        """Read it."""
        package, _, steps = text.partition(":")
        levels = enumerate(steps.split(","))
        return cls(package.strip(), {name.strip(): at for at, step in levels for name in step.split("|")})

    def child(self, module: str) -> str:
        """Return the room, or file, of the package in which a module lies; empty if in none."""
        inside = module.startswith(f"{self.package}.")
        return module.removeprefix(f"{self.package}.").partition(".")[0] if inside else ""


class _ImportContract(Contract):
    """A contract about single imports, each of which is refused with its reason."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - as it is called
        refused = sorted(set(self.refused(graph)))
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["refused"]:
            output.print_error(line)

    def refused(self, graph: ImportGraph) -> Iterator[str]:
        """Yield a line for each import that is not allowed."""
        raise NotImplementedError


class Rooms(_ImportContract):
    """Rooms import from those below them, and see of another room what its ``__init__`` exports.

    ``stairs``: one for each package that has rooms. A room is a folder, and each one needs a step; a file may
    have one, too. ``open``: patterns of rooms whose files are what they export.
    """

    type_name = "rooms"
    stairs: Any = fields.ListField(subfield=fields.StringField())
    open: Any = fields.ListField(subfield=fields.StringField(), required=False)

    def refused(self, graph: ImportGraph) -> Iterator[str]:
        stairs = [Stair.read(text) for text in self.stairs]
        for stair in stairs:
            folders = [child for child in graph.find_children(stair.package) if graph.find_children(child)]
            yield from without_step(stair, folders)
            yield from upwards(stair, _imports(graph))
            yield from behind_the_door(stair, _imports(graph), self.open or ())


class Borders(_ImportContract):
    """Libraries stay in the modules that are named: ``"pymongo, bson: package.store, package.embedded"``."""

    type_name = "borders"
    libraries: Any = fields.ListField(subfield=fields.StringField())

    def refused(self, graph: ImportGraph) -> Iterator[str]:
        for rule in self.libraries:
            libraries, modules = ([one.strip() for one in part.split(",")] for part in rule.split(":"))
            yield from across(libraries, modules, _imports(graph))


def without_step(stair: Stair, folders: Iterable[str]) -> Iterator[str]:
    """Yield the folders that have no step."""
    for folder in folders:
        if stair.child(folder) not in stair.steps:
            yield f"{folder} has no step in the stair of {stair.package}"


def upwards(stair: Stair, imports: Imports) -> Iterator[str]:
    """Yield imports from a room that is not below."""
    for importer, imported in imports:
        here, there = stair.child(importer), stair.child(imported)
        if here != there and {here, there} <= stair.steps.keys() and stair.steps[here] >= stair.steps[there]:
            yield f"{importer} imports {imported}, which is not below it"


def behind_the_door(stair: Stair, imports: Imports, opened: Iterable[str]) -> Iterator[str]:
    """Yield imports, from outside of a room, of what is inside."""
    for importer, imported in imports:
        room = f"{stair.package}.{stair.child(imported)}"
        if room == imported or not stair.child(imported) or _within(importer, room):
            continue
        if not any(fnmatchcase(room, pattern) for pattern in opened):
            yield f"{importer} imports {imported}: others see of {room} what it exports"


def across(libraries: Iterable[str], modules: Iterable[str], imports: Imports) -> Iterator[str]:
    """Yield imports of libraries by other modules than these."""
    for importer, imported in imports:
        if imported.partition(".")[0] in libraries and not any(
            _within(importer, module) for module in modules
        ):
            yield f"{importer} imports {imported}, which stays in {', '.join(modules)}"


def _imports(graph: ImportGraph) -> list[tuple[str, str]]:
    return [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
