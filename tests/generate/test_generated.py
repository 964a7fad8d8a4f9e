"""Small whole kernels, drawn at random: each is refused with a diagnostic, or built, run without a fault, and equal to
what numpy says that it means.

The first kernel's number is $TILEC_GENERATED, or 1: the same kernels in every run. `.ci/weekly` draws others each
week. A failure names the numbers of its kernels, and `python tests/generate/drawn_campaign.py --first N --count 1
--show` shows one.
"""

from __future__ import annotations

import os

import pytest
from drawing.draw import drawn
from judging import Case, judged

COUNT, PARTS = 300, 30


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_kernels_mean_what_numpy_says(part: int) -> None:
    first, size = int(os.environ.get("TILEC_GENERATED", "1")), COUNT // PARTS
    verdicts = {number: judged(Case(drawn(number))) for number in range(first + part * size, first + (part + 1) * size)}
    wrong = [f"kernel {number}: {v.name}\n{v.told}" for number, v in verdicts.items() if not v.is_fine]
    assert not wrong, f"TILEC_GENERATED={first}\n" + "\n".join(wrong)
    assert any(v.kind == "agrees" for v in verdicts.values()), f"TILEC_GENERATED={first}: all are refused"
