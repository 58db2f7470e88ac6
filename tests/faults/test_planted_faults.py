"""Each planted fault is seen by the tests that its entry names."""

import subprocess
import sys

import pytest

from mutants.planting import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]  # some seconds for each of seventy faults


def test_each_planted_fault_is_seen() -> None:
    command = [sys.executable, str(ROOT / "tools/mutants/run.py")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
