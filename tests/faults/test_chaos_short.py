"""Half a minute of chaos, with a few kinds of faults; ``./deploy/test chaos`` has all, for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fault_kinds import FAULTS
from chaos.figures import packs
from chaos.run import run

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

SEED, SECONDS = 37, 30.0
FEW = (
    "kill -9 of a broker",
    "SIGSTOP of a broker beyond its lease",
    "SIGSTOP of a client",
    "kill -9 of a client",
    "kill -9 of a mongod",
    "partition",
    "lost replies",
)


def test_half_a_minute_of_faults_loses_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    few = [fault for fault in FAULTS if fault.name in FEW]
    outcome = run(SEED, SECONDS, tmp_path / "run", few, pace=0.3)
    assert len(outcome.steps) >= 5
    assert "\n".join(map(str, outcome.breaches)) == ""
    assert packs(tmp_path / "run")["jobs"] > 0
