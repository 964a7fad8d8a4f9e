"""The benchmark of expansion still runs; how long things take is its own business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "expansion.py"


def test_it_prints_a_row_for_each_form() -> None:
    ran = subprocess.run([sys.executable, BENCHMARK, "--repeat", "1"], capture_output=True, text=True)
    assert ran.stderr == ""
    head, *rows = ran.stdout.splitlines()
    assert head.split()[:3] == ["target", "strategy", "iterations"]
    assert {tuple(row.split()[:2]) for row in rows} >= {
        ("sm_80", "auto"),
        ("sm_90a", "auto"),
        ("sm_90a", "unspecialize"),
    }
