"""A trial of the tuner's on a real GPU. Skipped where there is no driver or GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.host import runtime
from tilec.support.options import CompileOptions
from tilec.target.table import load_target
from tilec.tune import trial
from tilec.tune.measure import find_gpu_for

SAMPLES = Path(__file__).parents[2] / "samples"

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not runtime.has_gpu(), reason="no CUDA driver or no GPU")]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_larger_product_takes_longer(target: str) -> None:
    if not (gpu := find_gpu_for(load_target(target))):
        pytest.skip("another GPU")
    text = (SAMPLES / "gemm.tl").read_text(encoding="utf-8")
    taken = []
    for size in (1024, 4096):
        asked = CompileOptions(target=target, defines=(("M", size), ("N", size), ("K", size)))
        found = trial.try_variant(trial.Variant("gemm.tl", text, asked, is_measured=True))
        assert found.gpu == gpu and found.milliseconds is not None
        taken.append(found.milliseconds)
    assert 0 < 4 * taken[0] < taken[1]
