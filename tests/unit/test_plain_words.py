"""Docstrings, comments and texts have the form that CONTRIBUTING.md asks for."""

from pathlib import Path

import pytest

from support.plain_words import LONGEST_SENTENCE, catch_alls_of, dialect_of, problems_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench/sluicemq_bench", "broker", "clients/sluicemq", "devices", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
#: All that has loops: tools and tests are read, too.
EVERYWHERE = ("bench", "benchmarks", "broker", "clients", "deploy", "devices", "examples", "tests", "tools")
#: Definitions with a name of the dialect, at most: this number only falls.
MOST_OF_THE_DIALECT = 44


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_sources_are_in_plain_words() -> None:
    found = [f"{name(path)}:{line}: {what}" for path in FILES for line, what in problems_of(path.read_text())]
    assert found == []


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


def test_loop_variables_have_the_names_of_things() -> None:
    files = [path for folder in EVERYWHERE for path in (ROOT / folder).rglob("*.py")]
    found = [f"{name(path)}:{line}" for path in files for line in catch_alls_of(path.read_text())]
    assert found == [], "name what one of them is"


def test_a_catch_all_is_found_in_loops_comprehensions_lambdas_and_arguments() -> None:
    source = "for each in jobs: pass\n[each for each in jobs]\nlambda each: 0\ndef f(each): pass\n"
    assert catch_alls_of(source) == [1, 2, 3, 4]
