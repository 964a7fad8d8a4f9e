"""One rule rounds all shares that tilec shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilec.support.display import show_share

TILEC = Path(__file__).parents[2] / "tilec"

# Spreads of measurements, which are no shares.
OTHERS = {"calibrate/plan.py", "cli/commands/calibrate.py"}


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0%"), (0.004, "0%"), (0.125, "13%"), (0.375, "38%"), (2 / 3, "67%"), (0.994, "99%"), (1, "100%")],
)
def test_shares_are_rounded_half_up(share: float, shown: str) -> None:
    assert show_share(share) == shown


def test_nothing_else_formats_percentages() -> None:
    formats = re.compile(r":[^{}:]*%\}")  # as in f"{share:.0%}"
    found = {p.relative_to(TILEC).as_posix() for p in TILEC.rglob("*.py") if formats.search(p.read_text("utf-8"))}
    assert found == OTHERS
    lines = (TILEC / "report" / "templates" / "report.js").read_text("utf-8").splitlines()
    assert [line.split("(")[0].strip() for line in lines if re.search(r"\} ?%", line)] == ["const percent =", "beside"]
