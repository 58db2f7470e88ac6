"""Let something happen between two statements of a verb: another broker acts there, or a client does.

A fault that no argument and no reply of MongoDB can bring about needs a place inside the code. Its name is
private there, and stands in the test that needs it; :mod:`support.faulty_mongo` is the way where a whole
statement can be held or broken.
"""

from collections.abc import Callable
from typing import Any

import pytest


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, happens: Callable[[], object]) -> None:
    """Let something happen once, right before ``owner``'s function ``name`` runs the next time."""
    real = getattr(owner, name)

    def interposed(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        happens()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, interposed)


def after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, happens: Callable[[], object]) -> None:
    """Let something happen once, right after ``owner``'s function ``name`` has run the next time."""
    real = getattr(owner, name)

    def interposed(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        found = real(*arguments, **options)
        happens()
        return found

    monkeypatch.setattr(owner, name, interposed)
