"""Runs of models: at random, or one rule of two brokers alone; and what each needs around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from pymongo.database import Database


@dataclass
class Surroundings:
    """Values that the fixtures give to every run."""

    documents: Database[dict[str, Any]]
    complaints: list[str]
    monkeypatch: pytest.MonkeyPatch


class _Complaints(logging.Handler):
    """An error that the broker shields from others is still an error."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__()
        self.complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.complaints.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def surrounded(
    machine: Any, documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Give a machine what it needs to run; errors that a broker shields from others are complaints, too."""
    complaints: list[str] = []
    listener = _Complaints(complaints)
    machine.around = Surroundings(documents, complaints, monkeypatch)
    logging.getLogger("broker").addHandler(listener)
    yield
    logging.getLogger("broker").removeHandler(listener)
    del machine.around


def run_alone(machine: type[Any], step: Callable[[Any], None]) -> None:
    """One rule, or some, for two brokers at work; then everything is healed, and must come to its end."""
    model: Any = machine()
    try:
        model.everybody_is_at_work()
        model.holds()
        step(model)
        model.holds()
    finally:
        model.teardown()


def check(machine: type[Any], examples: int, steps: int) -> None:
    """Random runs of ``steps`` steps at most; the first that fails is made short and shown."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=examples < 50,  # the short run takes one course each time
            suppress_health_check=list(HealthCheck),
        ),
    )
