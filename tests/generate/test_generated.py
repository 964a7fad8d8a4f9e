"""Small whole kernels, drawn afresh in each run: each is refused with a diagnostic, or built, run without a fault, and
equal to what numpy says that it means.

Which ones is said by $TILEC_GENERATED, a number; without it by the day's time. A failure names the numbers of its
kernels, and `python tests/generate/drawn_campaign.py --first N --count 1 --show` shows one.
"""

from __future__ import annotations

import os
import time

import pytest
from drawing.draw import drawn
from judging import Case, judged

COUNT, PARTS = 300, 30


@pytest.fixture(scope="session")
def first(request: pytest.FixtureRequest) -> int:
    """Of this run's kernels the first one: the same in all its processes."""
    told = os.environ.get("TILEC_GENERATED") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return int(time.time()) * 1000 if told is None else int(told, 16 if len(told) == 32 else 10) % 10**12


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_kernels_mean_what_numpy_says(part: int, first: int) -> None:
    size = COUNT // PARTS
    verdicts = {number: judged(Case(drawn(number))) for number in range(first + part * size, first + (part + 1) * size)}
    wrong = [f"kernel {number}: {v.name}\n{v.told}" for number, v in verdicts.items() if not v.is_fine]
    assert not wrong, f"TILEC_GENERATED={first}\n" + "\n".join(wrong)
    assert any(v.kind == "agrees" for v in verdicts.values()), f"TILEC_GENERATED={first}: all are refused"
