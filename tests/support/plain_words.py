"""The form of docstrings, comments and texts that a machine can check: CONTRIBUTING.md, "Documents"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final, NamedTuple

#: A docstring begins with a verb or a noun, so not with one of these.
FIRST_WORDS: Final = frozenset(
    {"As", "Else", "It", "Its", "Nobody", "Of", "So", "Somebody", "That", "Their", "These", "They", "Those"}
    | {"What", "Whatever", "Whether", "Which", "Whichever", "Who", "Whoever", "Whom", "Whose"}
)
#: Words for which the field has a plainer one; and those that are vague in code, where the reader sees no
#: more than a line.
WORDS: Final = re.compile(
    r"\b(told|whoever|whosoever|nothing but|anew|thereof|so many|so much|comes? to lie|bereaved|kin|obituary"
    r"|askers?|born|going back)\b",
    re.IGNORECASE,
)
_VAGUE: Final = re.compile(r"\b(the same|letters?|whichever|as long again|lies? ready)\b", re.IGNORECASE)
#: Names of stored fields in double backticks or in the drawing of a document, and what the words mean
#: elsewhere.
_ALLOWED: Final = re.compile(
    r"``[^`]*``|\{[^}]*\}.*|dead[- ]letters?|(capital|lower-case) letters?|letters and digits", re.IGNORECASE
)
#: Characters of a docstring's first sentence, at most.
LONGEST_SENTENCE: Final = 120

#: Names that say nothing of what they name: each has a word of the field (dispatch, expired, measure).
DIALECT: Final = frozenset(
    {"look", "hear", "heard", "behind", "kept", "told", "asked", "suspect", "hold", "shown", "came"}
    | {"go_on", "goes_on", "read_on", "move_on", "look_again", "is_suspect", "return_unheard"}
    | {"born", "mine", "around", "ground", "apart", "everywhere", "Apart", "Way", "Standing", "Strange"}
    | {"Surroundings", "Consultation", "Doubt"}
)

_MAY_BE_DIALECT: Final = re.compile(
    rf"\b(def|class) _*({'|'.join(DIALECT)})\b|\b_*({'|'.join(DIALECT)})_*\s*[:=,)]"
)
_MAY_NAME_EACH: Final = re.compile(r"\beach\b([^\n.\[]* in\b|:| =|\))")
_WORD: Final = re.compile(r"[\s,:;.]")
_SENTENCE: Final = re.compile(r"(?<=[.:;])\s+(?=[A-Z`:])")


class Problem(NamedTuple):
    """A place that is not in plain words."""

    line: int
    what: str


def dialect_of(source: str) -> list[str]:
    """Return the names of :data:`DIALECT` that functions, classes and arguments of a Python source have."""
    if not _MAY_BE_DIALECT.search(source):  # to parse all files would take longer
        return []
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = list(ast.walk(ast.parse(source)))
    names = [node.name for node in nodes if isinstance(node, definitions)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return [name for name in names if name.strip("_") in DIALECT]


def catch_alls_of(source: str) -> list[int]:
    """Return the lines that call a variable or an argument ``each``, which says nothing of the thing."""
    if not _MAY_NAME_EACH.search(source):  # to parse all files would take longer
        return []
    nodes = list(ast.walk(ast.parse(source)))
    variables = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    lines = [node.lineno for node in variables if node.id == "each"]
    return sorted(lines + [node.lineno for node in nodes if isinstance(node, ast.arg) and node.arg == "each"])


def problems_of(source: str) -> list[Problem]:
    """Return what is not in plain words in the docstrings, comments and texts of a Python source."""
    tree = ast.parse(source)
    docstrings = {
        statement.value: statement.value.value
        for statement in _statements(tree)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement.value.value, str)
    }
    problems = [
        Problem(node.lineno, what) for node, text in docstrings.items() for what in _docstring_problems(text)
    ]
    if not (WORDS.search(source) or _VAGUE.search(source)):  # to find its comments would take longer
        return sorted(problems)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            problems += [Problem(node.lineno, what) for what in _texts_problems(node.value)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            problems += [Problem(token.start[0], what) for what in words_of(token.string)]
    return sorted(problems)


def words_of(text: str) -> list[str]:
    """Return the words of a docstring or comment that have a plainer one."""
    return _found(text, WORDS) + _found(text, _VAGUE)


def _found(text: str, words: re.Pattern[str]) -> list[str]:
    if not words.search(text):
        return []
    return [f"the word {found[0]!r}" for found in words.finditer(_ALLOWED.sub("", text))]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, without its expressions, which are most of a source."""
    for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in found if isinstance(found := getattr(node, inside, None), list) else ():
            yield child
            yield from _statements(child)


def _docstring_problems(text: str) -> Iterator[str]:
    text = text.strip()
    word = _WORD.split(text, maxsplit=1)[0]
    if word in FIRST_WORDS or text.startswith("The same"):
        yield f"it begins with {word!r}"
    sentence = _SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0]
    if len(sentence) > LONGEST_SENTENCE:
        yield f"its first sentence has {len(sentence)} characters, more than {LONGEST_SENTENCE}"
    yield from words_of(text)


def _texts_problems(text: str) -> list[str]:
    """Return the problems of a text that people read: names and keys have no space."""
    return _found(text, WORDS) if " " in text else []
