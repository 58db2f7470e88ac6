"""Docstrings, comments and texts have the form that CONTRIBUTING.md asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plain_words import LONGEST_SENTENCE, dialect_of, problems_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench/sluicemq_bench", "broker", "clients/sluicemq", "devices", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
#: Definitions with a name of the dialect, at most: this number only falls.
MOST_OF_THE_DIALECT = 109


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_in_plain_words(path: Path) -> None:
    assert [f"{name(path)}:{line}: {what}" for line, what in problems_of(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """What it gives."""\n',
        'def f():\n    """The same for others."""\n',
        'def f():\n    """Return so many jobs."""\n',
        f'def f():\n    """Return {"x" * LONGEST_SENTENCE}."""\n',
        'class C:\n    a = 1\n    """Whose it is."""\n',
        "x = 1  # whoever asks\n",
        'raise ValueError("ask whoever has it")\n',
    ],
)
def test_what_is_not_in_plain_words_is_found(source: str) -> None:
    assert problems_of(source) != []


def test_plain_words_pass() -> None:
    source = '"""Jobs that wait."""\n\nLETTER = "letter"  # of the dead letters\n'
    assert problems_of(source) == []


def test_names_of_the_dialect_become_fewer() -> None:
    assert sum(len(dialect_of(path.read_text())) for path in FILES) <= MOST_OF_THE_DIALECT


def test_a_name_of_the_dialect_is_found_in_functions_classes_and_arguments() -> None:
    assert dialect_of("def _look(told):\n    pass\nclass Way:\n    pass\n") == ["_look", "Way", "told"]
