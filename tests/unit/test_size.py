"""What the tool that counts the code calls a line, a constant, and too much."""

from __future__ import annotations

import ast

import pytest

from size import Size, code_lines, compare, constants

SOURCE = '''"""A docstring

of three lines."""
import os  # a comment

LIMIT: int = 3
_MOST = 4
lower = (
    5
)


def double(value):
    """A docstring."""
    # a comment
    return """text
    is code"""
'''


def test_blanks_comments_and_docstrings_are_no_code() -> None:
    assert code_lines(SOURCE) == 9
    assert constants(ast.parse(SOURCE)) == 2


@pytest.mark.parametrize(("lines", "says"), [(100, []), (99, []), (101, ["take"]), (90, ["lower"])])
def test_a_budget_holds_and_only_falls(lines: int, says: list[str]) -> None:
    problems = [*compare("a_package", Size(lines=lines), {"lines": 100})]
    assert [word for word in ("take", "lower") for problem in problems if word in problem] == says
